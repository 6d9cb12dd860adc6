"""A WebSocket through nginx and gunicorn, tested with another library than the one in the box."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import requests
import websocket

from tests.support.boxes import RunningBox, wait_until
from tests.support.memory import PeakMemory
from tests.support.websocket_frames import CASES, CLOSE, PONG, close_code, frame, play

Connect = Callable[..., websocket.WebSocket]
PATH = "/invocations-bidirectional-stream"
TEXT, BINARY = websocket.ABNF.OPCODE_TEXT, websocket.ABNF.OPCODE_BINARY


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Opens WebSockets that are closed after the test."""
    with contextlib.ExitStack() as stack:

        def open_connection(box: RunningBox, query: str = "", **headers: str) -> websocket.WebSocket:
            connection = websocket.create_connection(
                f"ws://127.0.0.1:{box.port}{PATH}{query}",
                timeout=30,
                header={name.replace("_", "-"): value for name, value in headers.items()},
            )
            stack.callback(connection.shutdown)
            stack.callback(connection.close)
            return connection

        yield open_connection


def message(model: str, payload: object) -> str:
    return json.dumps({"modelname": model, "payload": payload})


SHORT = message("slow", {"seconds": 0})


def ask(connection: websocket.WebSocket, text: str) -> Any:
    connection.send(text)
    return json.loads(connection.recv())


def check_closed(connection: websocket.WebSocket, code: int) -> None:
    """Check that the box closes the connection with this code."""
    opcode, reason = connection.recv_data()
    assert (opcode, int.from_bytes(reason[:2], "big")) == (CLOSE, code)


def test_each_message_gets_one_answer(box: RunningBox, connect: Connect) -> None:
    connection = connect(box)
    for seconds in (0.0, 0.01):
        answer = ask(connection, message("slow", {"seconds": seconds}))
        assert answer == {"modelname": "slow", "result": seconds}


def test_a_streamed_answer_is_a_message_for_each_part_and_an_empty_one(
    box: RunningBox, connect: Connect
) -> None:
    """Parts are binary unless text is accepted."""
    connection = connect(box, "?modelname=words", Accept="text/plain", Content_Type="text/plain")
    connection.send("a small cat")
    assert [connection.recv() for _ in range(4)] == ["a", "small", "cat", ""]
    connection.send_binary(b"again")
    assert [connection.recv() for _ in range(2)] == ["again", ""]
    connection = connect(box)
    connection.send(message("numbers", {"count": 2}))
    assert [connection.recv() for _ in range(3)] == [b'{"number":0}\n', b'{"number":1}\n', b""]


def test_an_error_is_sent_as_a_message_and_the_connection_stays_open(
    box: RunningBox, connect: Connect
) -> None:
    connection = connect(box)
    assert ask(connection, "{")["code"] == "bad_input"
    connection.send(message("words", "one bad three"))
    assert connection.recv() == b"one"
    assert json.loads(connection.recv())["code"] == "bad_input"
    assert ask(connection, SHORT)["result"] == 0


def test_a_caller_that_hangs_up_cancels_the_work(box: RunningBox, connect: Connect) -> None:
    hang_ups = partial(box.metric, "trireme_invocations_total", model="numbers", status="499")
    before, connection = hang_ups(), connect(box)
    connection.send(message("numbers", {"count": 1000, "seconds": 0.1}))
    assert connection.recv() == b'{"number":0}\n'
    assert connection.sock is not None
    connection.sock.close()
    wait_until(lambda: hang_ups() == before + 1, description="a 499")


def test_websockets_leave_a_thread_to_other_callers(box: RunningBox, connect: Connect) -> None:
    def connect_when_possible() -> websocket.WebSocket | None:
        """The box notices only after a moment that an earlier caller has closed its WebSocket."""
        with contextlib.suppress(websocket.WebSocketBadStatusException):
            return connect(box)
        return None

    connections = [wait_until(connect_when_possible, description="room") for _ in range(3)]
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        connect(box)
    assert refused.value.status_code == 429
    assert box.invoke("slow", {"seconds": 0}).json()["result"] == 0
    connections[0].close()
    wait_until(connect_when_possible, description="room for another WebSocket")


def open_websocket(box: RunningBox) -> socket.socket:
    """Open a WebSocket and return its socket. Each message gets one answer: an error, as it names no model."""
    connection = socket.create_connection(("127.0.0.1", box.port), timeout=20)
    connection.sendall(
        f"GET {PATH} HTTP/1.1\r\nHost: box\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: c2l4dGVlbiBieXRlcyEhIQ==\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    assert head.startswith(b"HTTP/1.1 101"), head
    return connection


def test_the_cases_of_the_autobahn_suite(box: RunningBox) -> None:
    """Each answer, in its place, and the close with its code."""
    (worker,) = box.wait_for_workers(1)
    failed: list[object] = []
    for case in CASES:
        with open_websocket(box) as connection:
            frames = play(connection, case)
        expected = [*(opcode == PONG for opcode, _ in case.replies), False]
        if (
            not frames
            or [opcode == PONG for opcode, _ in frames] != expected
            or (frames[-1][0] != CLOSE or close_code(frames[-1][1]) != case.close)
        ):
            failed.append((case.name, [(opcode, payload[:50]) for opcode, payload in frames]))
    assert failed == []
    assert box.workers() == [worker]


def test_broken_frames_followed_by_a_flood_cost_no_memory(box: RunningBox) -> None:
    memory, flood = PeakMemory(box), frame(2, bytes(2**20), fin=False)
    for broken in (frame(1, b"\xff"), frame(1, b"x", masked=False), frame(1, b"x", rsv=4)):
        with open_websocket(box) as connection, contextlib.suppress(OSError):
            connection.sendall(broken)
            for _ in range(500):
                connection.sendall(flood)
    assert memory.bytes < 64 * 2**20
    assert box.invoke("slow", {"seconds": 0}).json()["result"] == 0


def test_a_get_that_is_not_a_handshake_or_has_a_body_is_refused(either_box: RunningBox) -> None:
    for body, status, code in ((b"", 400, "bad_input"), (b" " * 5000, 413, "too_large")):
        response = requests.get(either_box.url + PATH, data=body, timeout=30)
        assert (response.status_code, response.json()["code"]) == (status, code)


def test_a_page_of_another_origin_opens_no_websocket_and_one_of_the_box_does(either_box: RunningBox) -> None:
    """Without a list of origins too."""
    url, own = f"ws://127.0.0.1:{either_box.port}{PATH}", f"127.0.0.1:{either_box.port}"
    for origin in ("http://evil.example", "null", f"https://{own}", f"http://{own}.evil.example"):
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            websocket.create_connection(url, timeout=30, origin=origin)
        assert refused.value.status_code == 403
        assert json.loads(refused.value.resp_body or b"{}")["code"] == "forbidden"
    websocket.create_connection(url, timeout=30, origin=f"http://{own}").close()


def test_a_websocket_and_a_stream_in_it_end_with_the_streams_time(
    box_with_limits: RunningBox, connect: Connect
) -> None:
    """Its key is checked when it opens, so it ends even if it is used all the time."""
    connection = connect(box_with_limits)
    opcode = TEXT
    while opcode in (TEXT, BINARY):
        connection.send(message("slow", {"seconds": 0.1}))
        opcode, content = connection.recv_data()
    assert (opcode, int.from_bytes(content[:2], "big")) == (CLOSE, 1001)

    connection, parts = connect(box_with_limits, Accept="text/event-stream"), []
    connection.send(message("words", {"text": "a " * 40, "seconds": 0.5}))
    while (received := connection.recv_data())[0] != CLOSE:
        parts.append(received[1])
    assert 0 < len(parts) < 40
    assert b"deadline_passed" in parts[-1]


def test_a_stop_closes_an_idle_websocket_at_once_and_waits_for_a_running_stream(
    either_box: RunningBox, connect: Connect
) -> None:
    """The last test of these boxes."""
    connection = connect(either_box)
    assert ask(connection, SHORT)["result"] == 0
    stream = requests.post(
        f"{either_box.url}/invocations",
        data=message("words", {"text": "one two three four", "seconds": 1.0}),
        headers={"Content-Type": "application/json", "Accept": "text/event-stream"},
        stream=True,
        timeout=30,
    )
    lines = stream.iter_lines(chunk_size=1)
    next(lines)
    either_box.process.send_signal(signal.SIGTERM)
    check_closed(connection, 1001)
    assert [json.loads(line[6:])["result"] for line in lines if line] == ["two", "three", "four"]
    assert either_box.process.wait(60) == 0
