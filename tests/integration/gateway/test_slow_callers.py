"""Callers without a key, slow callers and large bodies cost the gateway little and do not delay others."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.boxes import children, wait_until
from tests.support.gateways import KEY, FakeBucket, Gateway, environment, running_gateway_server

#: Bytes; far above the limit of a body.
TOO_LARGE = 60_000_000
#: More connections than the gateway has threads.
CONNECTIONS = 12


def connect(gateway: Gateway) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), timeout=20)


def request_head(length: int, key: str | None) -> bytes:
    lines = ["POST /infer/who HTTP/1.1", "Host: x", "Content-Type: application/json"]
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


def has_response(connection: socket.socket, seconds: float = 0) -> bool:
    return bool(select.select([connection], [], [], seconds)[0])


def read_status(connection: socket.socket) -> int:
    with connection.makefile("rb") as stream:
        return int(stream.readline().split()[1])


@pytest.mark.parametrize(
    ("length", "key", "status"), [(TOO_LARGE, None, 401), (TOO_LARGE, "wrong", 403), (50_000, KEY, None)]
)
def test_a_good_caller_is_served_while_others_stall_and_those_without_a_key_are_refused_before_their_body(
    gateway_server: Gateway, length: int, key: str | None, status: int | None
) -> None:
    with stalled_connections(gateway_server, length, key) as connections:
        for number in range(3):
            assert gateway_server.infer("who", {"payload": {"tensor": [number]}}).status_code == 200
        assert gateway_server.request("GET", "/health", key=None).status_code == 200
        if status is None:
            # The gateway has given up none of them yet, so the good caller did not wait for their end.
            assert not any(has_response(connection) for connection in connections)
        else:
            assert {read_status(connection) for connection in connections} == {status}


def test_large_bodies_without_a_key_take_no_memory(gateway_server: Gateway) -> None:
    def send(_: int) -> int:
        with connect(gateway_server) as connection:
            try:
                connection.sendall(request_head(TOO_LARGE, None))
                for _ in range(TOO_LARGE // 2**20):
                    connection.sendall(bytes(2**20))
                return read_status(connection)
            except ConnectionError:
                return 0

    memory_before = peak_memory(gateway_server)
    with ThreadPoolExecutor(8) as callers:
        assert set(callers.map(send, range(8))) <= {0, 401}
    assert peak_memory(gateway_server) - memory_before < 20 * 2**20


def peak_memory(gateway: Gateway) -> int:
    """The peak memory of the gateway's processes, in bytes."""
    pids = (gateway.pid, *children(gateway.pid))
    rows = [row for pid in pids for row in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(row.split()[1]) * 1024 for row in rows if row.startswith("VmHWM"))


def test_a_caller_that_sends_too_slowly_gets_408(gateway_server: Gateway) -> None:
    """A head that takes over 10 s, a body below the minimum rate, and one above it that takes over 7 s."""

    def send(start: bytes, piece: bytes) -> int:
        with connect(gateway_server) as connection:
            connection.sendall(start)
            while not has_response(connection, 0.5):
                connection.sendall(piece)
            return read_status(connection)

    head = request_head(100_000, KEY)
    starts = (head[:30], head, head + b" " * 20_000)
    with ThreadPoolExecutor(3) as executor:
        assert list(executor.map(send, starts, (b"x", b" ", b" " * 3000))) == [408] * 3


def test_all_bodies_together_have_a_limit_and_small_ones_are_always_accepted(gateway_server: Gateway) -> None:
    with stalled_connections(gateway_server, 99_000, KEY) as connections:
        for connection in connections:
            connection.sendall(b" " * 97_000)
        # The buffer of 100 KiB holds three of the bodies beyond their first 64 KiB.
        wait_until(lambda: sum(map(has_response, connections)) >= CONNECTIONS - 3, 7, "the refusals")
        refused = [connection for connection in connections if has_response(connection)]
        assert [read_status(connection) for connection in refused] == [429] * (CONNECTIONS - 3)
        assert gateway_server.infer("who", {"payload": {"tensor": [0.5]}}).status_code == 200


def test_health_checks_do_not_delay_other_callers(cloud: FakeBucket, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as silent_triton:
        variables = environment(cloud.address, f"127.0.0.1:{silent_triton.getsockname()[1]}")
        with running_gateway_server(tmp_path / "log", variables) as gateway, ExitStack() as stack:
            for _ in range(40):
                connection = stack.enter_context(connect(gateway))
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert gateway.infer("who", {"s3_key": "elsewhere"}).status_code == 403
            assert not has_response(connection)  # it still waits for Triton
            assert read_status(connection) == 503
