"""Callers without a key, slow callers and large bodies cost the gateway little and do not delay others."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import requests

from tests.support.boxes import wait_until
from tests.support.gateways import KEY, FakeBucket, Gateway, environment, running_gateway_server

#: Bytes; far above the limit of a body.
TOO_LARGE = 60_000_000
#: More connections than the gateway has threads.
CONNECTIONS = 12


def connect(gateway: Gateway) -> socket.socket:
    host, port = gateway.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def request_head(length: int, key: str | None, model: str = "who") -> bytes:
    lines = [f"POST /infer/{model} HTTP/1.1", "Host: x", "Content-Type: application/json"]
    lines += [f"x-api-key: {key}"] if key is not None else []
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


@contextmanager
def stalled_connections(gateway: Gateway, length: int, key: str | None) -> Iterator[list[socket.socket]]:
    """Open connections that have sent 1 KB of a longer body."""
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(gateway)) for _ in range(CONNECTIONS)]
        for connection in connections:
            connection.sendall(request_head(length, key) + b" " * 1000)
        yield connections


def has_response(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def read_status(connection: socket.socket) -> int:
    """Read the status of the response."""
    received = b""
    while b"\r\n" not in received:
        piece = connection.recv(1000)
        assert piece, received
        received += piece
    return int(received.split()[1])


@pytest.mark.parametrize(("length", "key"), [(TOO_LARGE, None), (TOO_LARGE, "wrong"), (50_000, KEY)])
def test_a_good_caller_is_served_while_others_stall_in_their_bodies(
    gateway_server: Gateway, length: int, key: str | None
) -> None:
    with stalled_connections(gateway_server, length, key) as connections:
        time.sleep(0.3)
        response = gateway_server.infer("who", {"payload": {"tensor": [length]}})
        assert response.status_code == 200, response.text
        assert gateway_server.request("GET", "/health", key=None).status_code == 200
        if key == KEY:
            # The gateway has given up none of them yet, so the good caller did not wait for their end.
            assert not any(has_response(connection) for connection in connections)


@pytest.mark.parametrize(("key", "expected"), [(None, 401), ("wrong", 403)])
def test_a_caller_without_a_valid_key_is_refused_before_its_body(
    gateway_server: Gateway, key: str | None, expected: int
) -> None:
    with stalled_connections(gateway_server, TOO_LARGE, key) as connections:
        assert {read_status(connection) for connection in connections} == {expected}


def test_large_bodies_without_a_key_take_no_memory(gateway_server: Gateway) -> None:
    def send() -> None:
        with connect(gateway_server) as connection:
            try:
                connection.sendall(request_head(TOO_LARGE, None))
                for _ in range(TOO_LARGE // 2**20):
                    connection.sendall(bytes(2**20))
                statuses.append(read_status(connection))
            except ConnectionError:
                statuses.append(0)

    statuses: list[int] = []
    memory_before = peak_memory(gateway_server)
    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(statuses) == 8
    assert set(statuses) <= {0, 401}
    assert peak_memory(gateway_server) - memory_before < 20 * 2**20


def test_a_caller_that_sends_too_slowly_gets_408(gateway_server: Gateway) -> None:
    """A head that takes over 10 s, a body below the minimum rate, and one above it that takes over 7 s.

    Each is given up at its own limit and not before, so at least that much time passes.
    """

    def send(start: bytes, piece: bytes) -> tuple[int, float]:
        with connect(gateway_server) as connection:
            started_at = time.monotonic()
            connection.sendall(start)
            while not select.select([connection], [], [], 0.5)[0]:
                connection.sendall(piece)
                assert time.monotonic() - started_at < 60
            return read_status(connection), time.monotonic() - started_at

    head = request_head(100_000, KEY)
    with ThreadPoolExecutor(3) as executor:
        slow_head = executor.submit(send, head[:30], b"x")
        too_slow = executor.submit(send, head, b" ")
        too_long = executor.submit(send, head + b" " * 20_000, b" " * 3000)
    assert slow_head.result()[0] == too_slow.result()[0] == too_long.result()[0] == 408
    assert too_slow.result()[1] > 4
    assert too_long.result()[1] > 6.9
    assert slow_head.result()[1] > 9


def test_all_bodies_together_have_a_limit_and_small_ones_are_always_accepted(gateway_server: Gateway) -> None:
    with stalled_connections(gateway_server, 99_000, KEY) as connections:
        for connection in connections:
            connection.sendall(b" " * 97_000)
        # The buffer of 100 KiB holds three of the bodies beyond their first 64 KiB.
        wait_until(lambda: sum(map(has_response, connections)) >= CONNECTIONS - 3, 7, "the refusals")
        refused_connections = [connection for connection in connections if has_response(connection)]
        assert {read_status(connection) for connection in refused_connections} == {429}
        assert len(refused_connections) == CONNECTIONS - 3
        assert gateway_server.infer("who", {"payload": {"tensor": [0.5]}}).status_code == 200


def test_requests_beyond_threads_and_queue_get_429_at_once(gateway_server: Gateway) -> None:
    def infer(number: int) -> requests.Response:
        return gateway_server.infer("words", {"payload": {"tensor": ["1", str(number)]}})

    with ThreadPoolExecutor(16) as executor:
        responses = list(executor.map(infer, range(16)))
    refused_responses = [response for response in responses if response.status_code == 429]
    # On a busy machine some come when others have ended.
    assert 0 < len(refused_responses) <= 4
    assert {response.headers["Retry-After"] for response in refused_responses} == {"1"}
    assert {response.status_code for response in responses} <= {200, 429, 504}


def test_health_checks_do_not_delay_other_callers(cloud: FakeBucket, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as silent_triton:
        address = f"127.0.0.1:{silent_triton.getsockname()[1]}"
        with (
            running_gateway_server(tmp_path / "log", environment(cloud.address, address)) as gateway,
            ExitStack() as stack,
        ):
            for _ in range(40):
                connection = stack.enter_context(connect(gateway))
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert gateway.infer("who", {"s3_key": "elsewhere"}).status_code == 403
            assert not has_response(connection)  # it still waits for Triton
            assert read_status(connection) == 503


def peak_memory(gateway: Gateway) -> int:
    """The peak memory of the gateway's processes, in bytes."""
    pids = [
        gateway.pid,
        *map(int, Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children").read_text().split()),
    ]
    rows = [row for pid in pids for row in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(row.split()[1]) * 1024 for row in rows if row.startswith("VmHWM"))
