"""A WebSocket through nginx and gunicorn, tested with another library than the one in the box."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import requests
import websocket

from tests.support.boxes import RunningBox, wait_until
from tests.support.memory import PeakMemory
from tests.support.websocket_frames import CASES, CLOSE, PONG, Case, close_code, frame, play

Connect = Callable[..., websocket.WebSocket]


def connect(box: RunningBox, query: str = "", **headers: str) -> websocket.WebSocket:
    url = f"ws://127.0.0.1:{box.port}/invocations-bidirectional-stream{query}"
    return websocket.create_connection(
        url, timeout=30, header={name.replace("_", "-"): value for name, value in headers.items()}
    )


@pytest.fixture
def connect_to_box(box: RunningBox) -> Iterator[Connect]:
    """Opens WebSockets that are closed after the test."""
    websockets: list[websocket.WebSocket] = []

    def open_connection(query: str = "", **headers: str) -> websocket.WebSocket:
        websockets.append(connect(box, query, **headers))
        return websockets[-1]

    yield open_connection
    for connection in websockets:
        connection.close()
        connection.shutdown()  # type: ignore[no-untyped-call]


def message(model: str, payload: object) -> str:
    return json.dumps({"modelname": model, "payload": payload})


def receive_json(connection: websocket.WebSocket) -> Any:
    return json.loads(connection.recv())


def test_each_message_gets_one_answer(connect_to_box: Connect) -> None:
    connection = connect_to_box()
    for seconds in (0.0, 0.01):
        connection.send(message("slow", {"seconds": seconds}))
        assert receive_json(connection) == {"modelname": "slow", "result": seconds}


def test_a_streamed_answer_is_a_message_for_each_part_and_an_empty_one(connect_to_box: Connect) -> None:
    connection = connect_to_box("?modelname=words", Accept="text/plain", Content_Type="text/plain")
    connection.send("a small cat")
    assert [connection.recv() for _ in range(4)] == ["a", "small", "cat", ""]
    connection.send_binary(b"again")
    assert [connection.recv() for _ in range(2)] == ["again", ""]


def test_parts_are_binary_unless_text_is_accepted(connect_to_box: Connect) -> None:
    connection = connect_to_box()
    connection.send(message("numbers", {"count": 2}))
    assert [connection.recv() for _ in range(3)] == [b'{"number":0}\n', b'{"number":1}\n', b""]


def test_an_error_is_sent_as_a_message_and_the_connection_stays_open(connect_to_box: Connect) -> None:
    connection = connect_to_box()
    connection.send("{")
    assert receive_json(connection)["code"] == "bad_input"
    connection.send(message("words", "one bad three"))
    assert connection.recv() == b"one"
    assert receive_json(connection)["code"] == "bad_input"
    connection.send(message("slow", {"seconds": 0}))
    assert receive_json(connection)["result"] == 0


def test_a_fragmented_message_is_read_as_one(connect_to_box: Connect) -> None:
    connection = connect_to_box()
    body = message("slow", {"seconds": 0}).encode()
    connection.send_frame(websocket.ABNF(0, 0, 0, 0, websocket.ABNF.OPCODE_TEXT, 1, body[:10]))
    connection.ping("are you there")
    connection.send_frame(websocket.ABNF(1, 0, 0, 0, websocket.ABNF.OPCODE_CONT, 1, body[10:]))
    assert connection.recv_data(control_frame=True) == (websocket.ABNF.OPCODE_PONG, b"are you there")
    assert receive_json(connection)["result"] == 0


def test_a_caller_that_hangs_up_cancels_the_work(box: RunningBox, connect_to_box: Connect) -> None:
    hang_ups = box.metric("trireme_invocations_total", model="numbers", status="499")
    connection = connect_to_box()
    connection.send(message("numbers", {"count": 1000, "seconds": 0.1}))
    assert connection.recv() == b'{"number":0}\n'
    assert connection.sock is not None
    connection.sock.close()
    wait_until(
        lambda: box.metric("trireme_invocations_total", model="numbers", status="499") == hang_ups + 1,
        description="a 499",
    )


def connect_when_possible(connect_to_box: Connect) -> websocket.WebSocket:
    """Wait for room: the box notices only after a moment that an earlier caller has closed its WebSocket."""

    def try_to_connect() -> websocket.WebSocket | None:
        try:
            return connect_to_box()
        except websocket.WebSocketBadStatusException:
            return None

    connection: websocket.WebSocket = wait_until(try_to_connect, description="room for another WebSocket")
    return connection


def test_websockets_leave_a_thread_to_other_callers(box: RunningBox, connect_to_box: Connect) -> None:
    connections = [connect_when_possible(connect_to_box) for _ in range(3)]
    with pytest.raises(websocket.WebSocketBadStatusException, match="429"):
        connect_to_box()
    assert box.invoke("slow", {"seconds": 0}).json()["result"] == 0
    connections[0].close()
    connect_when_possible(connect_to_box)


def receive_close(connection: websocket.WebSocket) -> int:
    """Return the code with which the box closes the connection."""
    opcode, reason = connection.recv_data()
    assert opcode == websocket.ABNF.OPCODE_CLOSE
    connection.shutdown()  # type: ignore[no-untyped-call]
    return int.from_bytes(reason[:2], "big")


def test_a_message_over_the_limit_closes_the_connection_with_the_reason(box_with_limits: RunningBox) -> None:
    connection = connect(box_with_limits)
    connection.send("x" * 10_001)
    assert receive_close(connection) == 1009


def open_websocket(box: RunningBox) -> socket.socket:
    """Open a WebSocket and return its socket. Each message gets one answer: an error, as it names no model."""
    connection = socket.create_connection(("127.0.0.1", box.port), timeout=20)
    connection.sendall(
        b"GET /invocations-bidirectional-stream HTTP/1.1\r\nHost: box\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: c2l4dGVlbiBieXRlcyEhIQ==\r\n\r\n"
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    assert head.startswith(b"HTTP/1.1 101"), head
    return connection


def failed_cases(box: RunningBox, cases: Sequence[Case] = CASES) -> list[object]:
    """Send each case's frames; return the cases that were not answered as the protocol says."""
    failed: list[object] = []
    for case in cases:
        with open_websocket(box) as connection:
            frames = play(connection, case)
        expected = [*(opcode == PONG for opcode, _ in case.replies), False]
        if (
            not frames
            or [opcode == PONG for opcode, _ in frames] != expected
            or (frames[-1][0] != CLOSE or close_code(frames[-1][1]) != case.close)
        ):
            failed.append((case.name, [(opcode, payload[:50]) for opcode, payload in frames]))
    return failed


@pytest.mark.parametrize("fixture", ["box", "box_without_nginx"])
def test_the_cases_of_the_autobahn_suite(request: pytest.FixtureRequest, fixture: str) -> None:
    """Through the whole box: each answer, in its place, and the close with its code."""
    box: RunningBox = request.getfixturevalue(fixture)
    (worker,) = box.wait_for_workers(1)
    assert failed_cases(box) == []
    assert box.workers() == [worker]


def test_broken_frames_followed_by_a_flood_cost_no_memory(box: RunningBox) -> None:
    memory = PeakMemory(box)
    message = frame(2, bytes(2**20), fin=False)
    for broken in (frame(1, b"\xff"), frame(1, b"x", masked=False), frame(1, b"x", rsv=4)):
        with open_websocket(box) as connection, contextlib.suppress(OSError):
            connection.sendall(broken)
            end = time.monotonic() + 1
            while time.monotonic() < end:
                connection.sendall(message)
    assert memory.bytes < 64 * 2**20
    assert box.invoke("slow", {"seconds": 0}).json()["result"] == 0


@pytest.mark.parametrize("fixture", ["box", "box_without_nginx"])
def test_only_pages_of_the_box_itself_may_open_a_websocket(
    request: pytest.FixtureRequest, fixture: str
) -> None:
    box: RunningBox = request.getfixturevalue(fixture)
    url = f"ws://127.0.0.1:{box.port}/invocations-bidirectional-stream"
    for origin in (
        *("http://evil.example", "null", f"https://127.0.0.1:{box.port}", "http://127.0.0.1"),
        *(f"http://127.0.0.1:{box.port}.evil.example", f"http://evil.example:{box.port}"),
    ):
        with pytest.raises(websocket.WebSocketBadStatusException, match="403") as refused:
            websocket.create_connection(url, timeout=30, origin=origin)
        assert json.loads(refused.value.resp_body or b"{}")["code"] == "forbidden"
    own = websocket.create_connection(url, timeout=30, origin=f"HTTP://127.0.0.1:{box.port}")
    own.close()
    websocket.create_connection(url, timeout=30, suppress_origin=True).close()


@pytest.mark.parametrize("fixture", ["box", "box_without_nginx"])
def test_a_handshake_needs_no_body(request: pytest.FixtureRequest, fixture: str) -> None:
    box: RunningBox = request.getfixturevalue(fixture)
    response = requests.get(f"{box.url}/invocations-bidirectional-stream", data=b" " * 5000, timeout=30)
    assert (response.status_code, response.json()["code"]) == (413, "too_large")


def test_a_websocket_that_is_used_all_the_time_ends_with_the_streams_time(
    box_with_limits: RunningBox,
) -> None:
    """Its key is checked when it opens."""
    connection = connect(box_with_limits)
    opcode = websocket.ABNF.OPCODE_TEXT
    while opcode != websocket.ABNF.OPCODE_CLOSE:
        connection.send(message("slow", {"seconds": 0.1}))
        opcode, content = connection.recv_data()
    assert int.from_bytes(content[:2], "big") == 1001
    connection.shutdown()  # type: ignore[no-untyped-call]


def test_a_stream_in_a_websocket_ends_with_the_websockets_time(box_with_limits: RunningBox) -> None:
    connection = connect(box_with_limits, Accept="text/event-stream")
    for _ in range(30):
        connection.send(message("slow", {"seconds": 0.1}))
        connection.recv_data()
    connection.send(message("words", {"text": "a " * 40, "seconds": 0.5}))
    parts = []
    while True:
        opcode, content = connection.recv_data()
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            break
        parts.append(content)
    assert 0 < len(parts) < 40
    assert b"deadline_passed" in parts[-1]
    connection.shutdown()  # type: ignore[no-untyped-call]


def test_a_plain_get_instead_of_a_handshake_is_a_400(box: RunningBox) -> None:
    response = requests.get(f"{box.url}/invocations-bidirectional-stream", timeout=30)
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")


@pytest.mark.parametrize("fixture", ["box", "box_without_nginx"])
def test_a_stop_closes_an_idle_websocket_at_once_and_waits_for_a_running_stream(
    request: pytest.FixtureRequest, fixture: str
) -> None:
    """The last test of these boxes."""
    box: RunningBox = request.getfixturevalue(fixture)
    connection = connect(box)
    connection.send(message("slow", {"seconds": 0}))
    assert receive_json(connection)["result"] == 0
    stream = requests.post(
        f"{box.url}/invocations",
        data=message("words", {"text": "one two three four", "seconds": 1.0}),
        headers={"Content-Type": "application/json", "Accept": "text/event-stream"},
        stream=True,
        timeout=30,
    )
    lines = stream.iter_lines(chunk_size=1)
    next(lines)
    box.process.send_signal(signal.SIGTERM)
    assert receive_close(connection) == 1001
    assert [json.loads(line[6:])["result"] for line in lines if line] == ["two", "three", "four"]
    assert box.process.wait(60) == 0
