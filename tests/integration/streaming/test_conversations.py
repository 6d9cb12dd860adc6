"""A WebSocket through nginx and gunicorn, spoken by another library than the box's own."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import websocket

from tests.support.boxes import RunningBox, wait_until
from tests.support.streaming_box import Start

Dial = Callable[..., websocket.WebSocket]


def connect(box: RunningBox, query: str = "", **headers: str) -> websocket.WebSocket:
    url = f"ws://127.0.0.1:{box.port}/invocations-bidirectional-stream{query}"
    return websocket.create_connection(
        url, timeout=30, header={name.replace("_", "-"): value for name, value in headers.items()}
    )


@pytest.fixture
def dial(box: RunningBox) -> Iterator[Dial]:
    lines: list[websocket.WebSocket] = []

    def connect_and_keep(query: str = "", **headers: str) -> websocket.WebSocket:
        lines.append(connect(box, query, **headers))
        return lines[-1]

    yield connect_and_keep
    for line in lines:
        line.close()
        line.shutdown()  # type: ignore[no-untyped-call]


def ask(model: str, payload: object) -> str:
    return json.dumps({"modelname": model, "payload": payload})


def receive(line: websocket.WebSocket) -> Any:
    return json.loads(line.recv())


def test_each_message_is_answered_by_one(dial: Dial) -> None:
    line = dial()
    for seconds in (0.0, 0.01):
        line.send(ask("slow", {"seconds": seconds}))
        assert receive(line) == {"modelname": "slow", "result": seconds}


def test_an_answer_in_parts_is_a_message_each_and_an_empty_one(dial: Dial) -> None:
    line = dial("?modelname=words", Accept="text/plain", Content_Type="text/plain")
    line.send("a small cat")
    assert [line.recv() for _ in range(4)] == ["a", "small", "cat", ""]
    line.send_binary(b"again")
    assert [line.recv() for _ in range(2)] == ["again", ""]


def test_parts_are_binary_where_no_text_is_accepted(dial: Dial) -> None:
    line = dial()
    line.send(ask("numbers", {"count": 2}))
    assert [line.recv() for _ in range(3)] == [b'{"number":0}\n', b'{"number":1}\n', b""]


def test_an_error_is_told_and_the_conversation_goes_on(dial: Dial) -> None:
    line = dial()
    line.send("{")
    assert receive(line)["code"] == "bad_input"
    line.send(ask("words", "one bad three"))
    assert line.recv() == b"one"
    assert receive(line)["error"] == "a bad word"
    line.send(ask("slow", {"seconds": 0}))
    assert receive(line)["result"] == 0


def test_a_message_in_fragments_is_one(dial: Dial) -> None:
    line = dial()
    body = ask("slow", {"seconds": 0}).encode()
    line.send_frame(websocket.ABNF(0, 0, 0, 0, websocket.ABNF.OPCODE_TEXT, 1, body[:10]))
    line.ping("are you there")
    line.send_frame(websocket.ABNF(1, 0, 0, 0, websocket.ABNF.OPCODE_CONT, 1, body[10:]))
    assert line.recv_data(control_frame=True) == (websocket.ABNF.OPCODE_PONG, b"are you there")
    assert receive(line)["result"] == 0


def test_a_caller_that_hangs_up_cancels_the_work(box: RunningBox, dial: Dial) -> None:
    left = box.metric("trireme_invocations_total", model="numbers", status="499")
    line = dial()
    line.send(ask("numbers", {"count": 1000, "seconds": 0.1}))
    assert line.recv() == b'{"number":0}\n'
    assert line.sock is not None
    line.sock.close()
    wait_until(
        lambda: box.metric("trireme_invocations_total", model="numbers", status="499") == left + 1,
        description="a 499",
    )


def test_conversations_leave_a_thread_to_other_callers(box: RunningBox, dial: Dial) -> None:
    lines = [dial() for _ in range(3)]
    with pytest.raises(websocket.WebSocketBadStatusException, match="429"):
        dial()
    assert box.invoke("slow", {"seconds": 0}).json()["result"] == 0
    lines[0].close()

    def room() -> bool:
        try:
            dial()
        except websocket.WebSocketBadStatusException:
            return False
        return True

    wait_until(room, description="room for another conversation")


def test_a_message_over_the_limit_ends_the_conversation_with_the_reason(start: Start) -> None:
    with start(SAGEMAKER_MODEL_SERVER_WORKERS="1", SAGEMAKER_MAX_REQUEST_SIZE="1000") as box:
        line = connect(box)
        line.send("x" * 1001)
        opcode, reason = line.recv_data()
        assert (opcode, int.from_bytes(reason[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 1009)
        line.shutdown()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("nginx", ["on", "off"])
def test_a_stop_ends_a_silent_conversation_at_once(start: Start, nginx: str) -> None:
    with start(SAGEMAKER_MODEL_SERVER_WORKERS="1", TRIREME_NGINX=nginx) as box:
        line = connect(box)
        line.send(ask("slow", {"seconds": 0}))
        assert receive(line)["result"] == 0
        box.process.send_signal(signal.SIGTERM)
        opcode, reason = line.recv_data()
        assert (opcode, int.from_bytes(reason[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 1001)
        # The box hangs up by itself.
        assert box.process.wait(60) == 0
        line.shutdown()  # type: ignore[no-untyped-call]


def test_what_is_no_handshake_is_a_400(box: RunningBox) -> None:
    response = requests.get(f"{box.url}/invocations-bidirectional-stream", timeout=30)
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")
