"""Callers without a key, slow callers and large bodies cost the gateway little, and other callers nothing."""

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
from tests.support.gateways import KEY, Cloud, Gateway, environment, served

#: Bytes of a body that no caller may send here.
LARGE = 60_000_000
#: More connections than the gateway has threads.
CONNECTIONS = 12


def connect(gateway: Gateway) -> socket.socket:
    host, port = gateway.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def head(length: int, key: str | None, model: str = "who") -> bytes:
    lines = [f"POST /infer/{model} HTTP/1.1", "Host: x", "Content-Type: application/json"]
    lines += [f"x-api-key: {key}"] if key is not None else []
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


@contextmanager
def stalled(gateway: Gateway, length: int, key: str | None) -> Iterator[list[socket.socket]]:
    """Connections that have sent 1 KB of a longer body."""
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(gateway)) for _ in range(CONNECTIONS)]
        for connection in connections:
            connection.sendall(head(length, key) + b" " * 1000)
        yield connections


def has_answer(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def status(connection: socket.socket) -> int:
    """Of the answer that arrives on it."""
    received = b""
    while b"\r\n" not in received:
        piece = connection.recv(1000)
        assert piece, received
        received += piece
    return int(received.split()[1])


@pytest.mark.parametrize(("length", "key"), [(LARGE, None), (LARGE, "wrong"), (50_000, KEY)])
def test_a_good_caller_is_answered_while_others_stall_in_their_bodies(
    server: Gateway, length: int, key: str | None
) -> None:
    with stalled(server, length, key) as connections:
        time.sleep(0.3)
        response = server.infer("who", {"payload": {"tensor": [length]}})
        assert response.status_code == 200, response.text
        assert server.ask("GET", "/health", key=None).status_code == 200
        if key == KEY:
            # None of those has been given up yet: nobody has waited for their end.
            assert not any(has_answer(connection) for connection in connections)


@pytest.mark.parametrize(("key", "expected"), [(None, 401), ("wrong", 403)])
def test_a_caller_without_a_good_key_is_refused_before_its_body(
    server: Gateway, key: str | None, expected: int
) -> None:
    with stalled(server, LARGE, key) as connections:
        assert {status(connection) for connection in connections} == {expected}


def test_large_bodies_without_a_key_take_no_memory(server: Gateway) -> None:
    def send() -> None:
        with connect(server) as connection:
            try:
                connection.sendall(head(LARGE, None))
                for _ in range(LARGE // 2**20):
                    connection.sendall(bytes(2**20))
                answers.append(status(connection))
            except ConnectionError:
                answers.append(0)

    answers: list[int] = []
    before = peak_memory(server)
    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert set(answers) <= {0, 401}
    assert peak_memory(server) - before < 20 * 2**20


def test_a_caller_who_sends_too_slowly_is_told_408(server: Gateway) -> None:
    """A head of 10 s, a body below the least rate, and one above it that takes longer than 7 s.

    Each is given up at its own limit and not before: so much time passes at least.
    """

    def send(start: bytes, piece: bytes) -> tuple[int, float]:
        with connect(server) as connection:
            started_at = time.monotonic()
            connection.sendall(start)
            while not select.select([connection], [], [], 0.5)[0]:
                connection.sendall(piece)
                assert time.monotonic() - started_at < 60
            return status(connection), time.monotonic() - started_at

    begun = head(100_000, KEY)
    with ThreadPoolExecutor(3) as executor:
        slow_head = executor.submit(send, begun[:30], b"x")
        too_slow = executor.submit(send, begun, b" ")
        too_long = executor.submit(send, begun + b" " * 20_000, b" " * 3000)
    assert slow_head.result()[0] == too_slow.result()[0] == too_long.result()[0] == 408
    assert too_slow.result()[1] > 4
    assert too_long.result()[1] > 6.9
    assert slow_head.result()[1] > 9


def test_bodies_together_have_a_limit_and_small_ones_are_always_taken(server: Gateway) -> None:
    with stalled(server, 99_000, KEY) as connections:
        for connection in connections:
            connection.sendall(b" " * 97_000)
        # 100 KiB hold what three of the bodies have above their first 64 KiB.
        wait_until(lambda: sum(map(has_answer, connections)) >= CONNECTIONS - 3, 7, "the refusals")
        refused = [connection for connection in connections if has_answer(connection)]
        assert {status(connection) for connection in refused} == {429}
        assert len(refused) == CONNECTIONS - 3
        assert server.infer("who", {"payload": {"tensor": [0.5]}}).status_code == 200


def test_requests_beyond_threads_and_queue_are_told_429_at_once(server: Gateway) -> None:
    def infer(number: int) -> requests.Response:
        return server.infer("words", {"payload": {"tensor": ["1", str(number)]}})

    with ThreadPoolExecutor(16) as executor:
        responses = list(executor.map(infer, range(16)))
    refused = [response for response in responses if response.status_code == 429]
    assert len(refused) == 4
    assert {response.headers["Retry-After"] for response in refused} == {"1"}
    assert {response.status_code for response in responses} <= {200, 429, 504}


def test_asking_for_health_keeps_no_other_caller_waiting(cloud: Cloud, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as silent:
        triton = f"127.0.0.1:{silent.getsockname()[1]}"
        with served(tmp_path / "log", environment(cloud.address, triton)) as gateway, ExitStack() as stack:
            for _ in range(40):
                connection = stack.enter_context(connect(gateway))
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert gateway.infer("who", {"s3_key": "elsewhere"}).status_code == 403
            assert not has_answer(connection)  # it still waits for Triton
            assert status(connection) == 503


def peak_memory(gateway: Gateway) -> int:
    """The most bytes that the gateway's processes have had."""
    pids = [
        gateway.pid,
        *map(int, Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children").read_text().split()),
    ]
    rows = [row for pid in pids for row in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(row.split()[1]) * 1024 for row in rows if row.startswith("VmHWM"))
