"""A WebSocket through nginx and gunicorn, tested with another library than the one in the box."""

from __future__ import annotations

import contextlib
import json
from contextlib import closing
from typing import Any

import pytest
import requests
import websocket
from websocket import ABNF

from tests.support.boxes import RunningBox, wait_until
from tests.support.load import dispatch_body
from tests.support.memory import PeakMemory

PATH = "/invocations-bidirectional-stream"
SHORT = dispatch_body("slow", {"seconds": 0})


def connect(box: RunningBox, query: str = "", **options: Any) -> websocket.WebSocket:
    return websocket.create_connection(f"ws://127.0.0.1:{box.port}{PATH}{query}", timeout=30, **options)


def ask(connection: websocket.WebSocket, message: bytes) -> Any:
    connection.send(message)
    return json.loads(connection.recv())


def test_each_message_gets_one_answer(box: RunningBox) -> None:
    """An error is one too, and the connection stays open."""
    with closing(connect(box)) as connection:
        assert ask(connection, SHORT) == {"modelname": "slow", "result": 0}
        assert ask(connection, b"{")["code"] == "bad_input"
        connection.send(dispatch_body("words", "one bad three"))
        assert connection.recv() == b"one"
        assert json.loads(connection.recv())["code"] == "bad_input"
        assert ask(connection, SHORT)["result"] == 0


def test_a_streamed_answer_is_a_message_for_each_part_and_an_empty_one(box: RunningBox) -> None:
    """Parts are binary unless text is accepted."""
    headers = {"Accept": "text/plain", "Content-Type": "text/plain"}
    with closing(connect(box, "?modelname=words", header=headers)) as connection:
        connection.send("a small cat")
        assert [connection.recv() for _ in range(4)] == ["a", "small", "cat", ""]
        connection.send_binary(b"again")
        assert [connection.recv() for _ in range(2)] == ["again", ""]
    with closing(connect(box)) as connection:
        connection.send(dispatch_body("numbers", {"count": 2}))
        assert [connection.recv() for _ in range(3)] == [b'{"number":0}\n', b'{"number":1}\n', b""]


def test_websockets_leave_a_thread_to_other_callers(box: RunningBox) -> None:
    def connect_when_possible() -> websocket.WebSocket | None:
        """The box notices only after a moment that an earlier caller has closed its WebSocket."""
        with contextlib.suppress(websocket.WebSocketBadStatusException):
            return stack.enter_context(closing(connect(box)))
        return None

    with contextlib.ExitStack() as stack:
        first, *_ = [wait_until(connect_when_possible, description="room") for _ in range(3)]
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            connect(box)
        assert refused.value.status_code == 429
        assert box.invoke("slow", {"seconds": 0}).json()["result"] == 0
        first.close()
        wait_until(connect_when_possible, description="room for another WebSocket")


def test_broken_frames_followed_by_a_flood_cost_no_memory(box: RunningBox) -> None:
    """tests/unit/router/test_websocket.py has the other kinds of frames."""
    (worker,) = box.wait_for_workers(1)
    memory, flood = PeakMemory(box), ABNF(opcode=ABNF.OPCODE_BINARY, data=bytes(2**20)).format()
    for broken in (ABNF(1, data=b"\xff"), ABNF(1, mask_value=0, data=b"x"), ABNF(1, rsv1=1, data=b"x")):
        connection = connect(box)
        assert connection.sock is not None
        with contextlib.suppress(OSError):
            connection.sock.sendall(broken.format())
            for _ in range(500):
                connection.sock.sendall(flood)
        connection.sock.close()
    assert memory.bytes < 64 * 2**20
    assert box.invoke("slow", {"seconds": 0}).json()["result"] == 0
    assert box.workers() == [worker]


def test_a_get_that_is_not_a_handshake_or_has_a_body_is_refused(either_box: RunningBox) -> None:
    for body, status, code in ((b"", 400, "bad_input"), (b" " * 5000, 413, "too_large")):
        response = requests.get(either_box.url + PATH, data=body, timeout=30)
        assert (response.status_code, response.json()["code"]) == (status, code)


def test_a_page_of_another_origin_opens_no_websocket_and_one_of_the_box_does(either_box: RunningBox) -> None:
    """Without a list of origins too."""
    own = f"127.0.0.1:{either_box.port}"
    for origin in ("http://evil.example", "null", f"https://{own}", f"http://{own}.evil.example"):
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            connect(either_box, origin=origin)
        assert refused.value.status_code == 403
        assert json.loads(refused.value.resp_body or b"{}")["code"] == "forbidden"
    connect(either_box, origin=f"http://{own}").close()
