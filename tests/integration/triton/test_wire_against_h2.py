"""The router's own gRPC client against gRPC's, on one server: what ``h2`` accepts, and the same answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from grpc import StatusCode
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from sm.errors import DeadlinePassed
from sm.run_state import Box
from sm.settings import Settings
from sm.triton import wire
from sm.triton.call_failures import Failed
from sm.triton.channel import Channel
from sm.triton.transport import Transport
from sm.triton.wire import ConnectionPool
from tests.support.h2_server import OPENING, Call, Script, h2_server, message

TIMEOUT_S = 10.0
PATH = "/inference.GRPCInferenceService/ModelInfer"
QUESTION = pb.ModelInferRequest(model_name="model", id="7", raw_input_contents=[b"x" * 9000])
ANSWER = pb.ModelInferResponse(model_name="model", id="7", raw_output_contents=[b"y" * 3000])
CONTENT = ANSWER.SerializeToString()
LONG = pb.ModelInferResponse(model_name="model", raw_output_contents=[bytes(range(256)) * 20_000])


def raw(call: Call, *frames: Frame, more: bytes = b"") -> None:
    """Frames as they are, past h2's own idea of what may be said now."""
    call.server.flush()
    call.server.sock.sendall(b"".join(each.serialize() for each in frames) + more)


def block(*headers: tuple[str, str]) -> bytes:
    return Encoder().encode(headers, huffman=False)


def refuse(code: int, sentence: str | None = "for a reason") -> Script:
    def script(call: Call) -> None:
        call.open()
        call.end(code, sentence)

    return script


def refuse_at_once(call: Call) -> None:
    trailers = [*OPENING, ("grpc-status", "8"), ("grpc-message", "a queue of 100%25 is f%C3%BCll")]
    call.server.h2.send_headers(call.stream, trailers, end_stream=True)


def reset(code: ErrorCodes, opened: bool) -> Script:
    def script(call: Call) -> None:
        if opened:
            call.open()
            call.send(message(CONTENT)[:100])
        call.server.h2.reset_stream(call.stream, code)

    return script


def pad(call: Call) -> None:
    opening = HeadersFrame(
        call.stream,
        block(*OPENING),
        flags=["END_HEADERS", "PADDED", "PRIORITY"],
        pad_length=7,
        depends_on=0,
        stream_weight=3,
    )
    parts = (message(CONTENT)[:1], message(CONTENT)[1:])
    bodies = [DataFrame(call.stream, part, flags=["PADDED"], pad_length=200) for part in parts]
    end = HeadersFrame(
        call.stream, block(("grpc-status", "0")), flags=["END_HEADERS", "END_STREAM", "PADDED"], pad_length=3
    )
    raw(call, opening, *bodies, end)


def interrupt(call: Call) -> None:
    """Frames between those of the answer that have nothing to do with it."""
    call.open()
    whole = message(CONTENT)
    for part in (whole[:3], whole[3:50], whole[50:]):
        call.send(part)
        raw(
            call,
            PingFrame(0, b"12345678"),
            SettingsFrame(0, settings={SettingCodes.MAX_CONCURRENT_STREAMS: 50}),
            WindowUpdateFrame(0, 1000),
            WindowUpdateFrame(call.stream, 1000),
            more=wire.frame(0xF0, 0, 0, b"a type that nobody knows"),
        )
    call.end()


def announce_first(call: Call) -> None:
    call.server.h2.send_headers(call.stream, [(":status", "103")])
    call.answer(CONTENT)


def continue_headers(call: Call) -> None:
    call.open()
    call.send(message(CONTENT))
    trailers = block(("grpc-status", "0"), ("x-note", "n" * 300))
    raw(
        call,
        HeadersFrame(call.stream, trailers[:20], flags=["END_STREAM"]),
        ContinuationFrame(call.stream, trailers[20:], flags=["END_HEADERS"]),
    )


def say_farewell(call: Call) -> None:
    raw(call, GoAwayFrame(0, last_stream_id=call.stream, error_code=ErrorCodes.NO_ERROR))
    call.answer(CONTENT)


def leave(after: int) -> Script:
    def script(call: Call) -> None:
        call.open()
        call.send(message(CONTENT)[:after])
        call.server.flush()
        call.server.sock.shutdown(socket.SHUT_RDWR)

    return script


def body(content: bytes, status: int = 0) -> Script:
    def script(call: Call) -> None:
        call.open()
        call.send(content)
        call.end(status)

    return script


def send(content: bytes, pad: int | None = None, frame_bytes: int = 2**14) -> Script:
    def script(call: Call) -> None:
        call.open()
        call.send(message(content), pad, frame_bytes)
        call.end()

    return script


def speak_http(status: str, kind: str) -> Script:
    def script(call: Call) -> None:
        call.server.h2.send_headers(call.stream, [(":status", status), ("content-type", kind)])
        call.server.h2.send_data(call.stream, b"<h1>a proxy's page</h1>", end_stream=True)

    return script


def answer(call: Call) -> None:
    call.answer(CONTENT)


#: What a server may do that is right, and that the wire reads by itself.
READ: dict[str, Script] = {
    "an ordinary answer": answer,
    "an empty message": send(b""),
    "megabytes": send(LONG.SerializeToString()),
    "megabytes in small frames": send(LONG.SerializeToString(), frame_bytes=11_111),
    "other frames in between": interrupt,
    "GOAWAY and then the answer": say_farewell,
    "a refusal with nothing before it": refuse_at_once,
    "a refusal without a sentence": refuse(13, None),
    "a refusal behind a message": body(message(CONTENT), 3),
    "a code that gRPC does not know": refuse(99),
    **{f"refused: {code.name}": refuse(code.value[0]) for code in StatusCode if code is not StatusCode.OK},
    **{f"RST_STREAM {code.name}": reset(code, False) for code in ErrorCodes},
    **{f"RST_STREAM {code.name} in a message": reset(code, True) for code in ErrorCodes},
    "hung up before the message": leave(0),
    "hung up in the message's head": leave(3),
    "hung up in the message": leave(100),
}
#: What RFC 9113 allows and gRPC's C core takes for a fault of the server.
READ_UNLIKE_GRPC: dict[str, Script] = {
    "frames with padding": send(CONTENT, pad=255, frame_bytes=500),
    "headers with padding and priority": pad,
    "early hints": announce_first,
}
#: What the wire does not read: gRPC's own client asks again, and from then on.
HANDED_OVER: dict[str, Script] = {
    # gRPC's C core never splits a block below the 256 KiB that it is offered.
    "CONTINUATION": continue_headers,
    # No compression is asked for, so none is undone.
    "a compressed message": body(message(CONTENT)[:0] + b"\1" + message(CONTENT)[1:]),
    # Triton does none of these: they would be another server's, or a fault of it.
    "no message": body(b""),
    "less of a message than it says": body(message(CONTENT)[:-1]),
    "HTTP without gRPC": speak_http("200", "text/html"),
    "a proxy's 503": speak_http("503", "text/html"),
}
#: The same, where gRPC's own client waits until the time is over.
WAITED_FOR: dict[str, Script] = {
    "two messages": body(message(CONTENT) * 2),
    "a message that goes on": body(message(CONTENT) + b"x"),
    "no end": lambda call: call.open(),
}


def outcome(channel: Channel, question: pb.ModelInferRequest = QUESTION) -> object:
    """An answer, or what a failure means for the caller and the memory it used."""
    try:
        return channel.infer(question)
    except Failed as failure:
        # The sentence on a reset is nobody's but the client's own.
        said = "reset" if "RST_STREAM" in failure.sentence else failure.sentence
        return failure.kind, failure.finished, said


def both(script: Script, timeout: float = TIMEOUT_S) -> dict[str, list[object]]:
    """What two calls on one channel come to, by the wire and by grpcio alone."""
    found = {}
    for name, own_wire in (("wire", True), ("grpcio", False)):
        with h2_server(script) as server:
            channel = Channel(server.port, timeout, own_wire=own_wire)
            found[name] = [outcome(channel) for _ in range(2)]
            channel.close()
    return found


@pytest.mark.parametrize("name", READ)
def test_an_answer_is_read_as_grpcs_own_client_reads_it(name: str, caplog: pytest.LogCaptureFixture) -> None:
    found = both(READ[name])
    assert found["wire"] == found["grpcio"]
    assert not caplog.records, "grpcio was asked instead"


@pytest.mark.parametrize("name", READ_UNLIKE_GRPC)
def test_http2_that_grpcs_own_client_refuses_is_read(name: str) -> None:
    found = both(READ_UNLIKE_GRPC[name])
    assert found["wire"] == [ANSWER] * 2
    assert ANSWER not in found["grpcio"]


@pytest.mark.parametrize("name", HANDED_OVER)
def test_what_the_wire_does_not_read_is_left_to_grpcs_own_client(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = both(HANDED_OVER[name])
    assert found["wire"] == found["grpcio"]
    (record,) = caplog.records
    assert "calls go through gRPC's own client from now on" in record.getMessage()


@pytest.mark.parametrize("name", WAITED_FOR)
def test_what_never_becomes_an_answer_ends_with_the_time_either_way(name: str) -> None:
    found = both(WAITED_FOR[name], timeout=0.3)
    assert found["wire"] == found["grpcio"]
    assert {failure[0] for failure in found["wire"]} == {DeadlinePassed}  # type: ignore[index]


def test_huffmans_code_is_left_to_grpcs_own_client(caplog: pytest.LogCaptureFixture) -> None:
    with h2_server(answer, huffman=True) as server:
        channel = Channel(server.port, TIMEOUT_S)
        assert [channel.infer(QUESTION) for _ in range(2)] == [ANSWER] * 2
        channel.close()
    assert "Huffman" in caplog.text


def test_h2_takes_what_is_sent_for_the_call_that_grpcs_own_client_makes() -> None:
    sent = {}
    for own_wire in (True, False):
        with h2_server(answer) as server:
            channel = Channel(server.port, TIMEOUT_S, {"triton-key": "k"}, own_wire=own_wire)
            channel.infer(QUESTION)
            channel.close()
        (call,) = server.calls
        sent[own_wire] = dict(call.headers), call.body
    (ours, our_body), (theirs, their_body) = sent[True], sent[False]
    assert our_body == their_body == message(QUESTION.SerializeToString())
    for headers in (ours, theirs):
        assert headers.pop("grpc-timeout")
        assert headers.pop(":authority").startswith("127.0.0.1:")
    # No compression is offered, and no name of a library.
    assert {name: theirs.pop(name, "") for name in ("user-agent", "grpc-accept-encoding")}
    assert ours == theirs


@pytest.mark.parametrize(("client", "own"), [("own", True), ("grpcio", False)])
def test_a_setting_has_grpcs_own_client_make_every_call(tmp_path: Path, client: str, own: bool) -> None:
    with h2_server(lambda call: call.answer(b"")) as server:
        box = Box("testwire", tmp_path, tmp_path, 1, server.port, 1, "nginx", shared_bytes=0)
        transport = Transport(Settings.read({"TRIREME_GRPC_CLIENT": client}), box)
        assert transport.infer("model", {"x": np.zeros((1, 1), np.float32)}) == {}
        transport.close()
    (call,) = (call for call in server.calls if (":path", PATH) in call.headers)
    assert own is ("user-agent" not in dict(call.headers))


def test_connections_are_used_again_and_never_after_a_goaway() -> None:
    for script, connections in ((answer, 1), (say_farewell, 5)):
        with h2_server(script) as server:
            channel = Channel(server.port, TIMEOUT_S)
            assert [channel.infer(QUESTION) for _ in range(5)] == [ANSWER] * 5
            channel.close()
        assert server.connections == connections


def test_more_bytes_than_any_window_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without updates of the windows, either side would stand still after 64 KiB."""
    monkeypatch.setattr(wire, "WINDOW_UPDATE_BYTES", 2**14)
    monkeypatch.setattr(wire, "PREFACE", wire.preface(window=2**18))
    with h2_server(send(CONTENT * 20)) as server:
        pool = ConnectionPool(server.port, PATH, {})
        for _ in range(50):
            connection = pool.acquire(b"x" * 9000, TIMEOUT_S)
            assert connection.receive(TIMEOUT_S) == CONTENT * 20
            pool.release(connection)
        pool.close()
    assert server.connections == 1


@pytest.mark.parametrize(
    "said", [{SettingCodes.INITIAL_WINDOW_SIZE: 100}, {SettingCodes.MAX_CONCURRENT_STREAMS: 0}], ids=str
)
def test_a_server_with_little_room_gets_each_call_before_it_can_say_so(
    said: dict[SettingCodes | int, int],
) -> None:
    with h2_server(answer, settings=said) as server:
        channel = Channel(server.port, TIMEOUT_S)
        assert [channel.infer(QUESTION) for _ in range(3)] == [ANSWER] * 3
        channel.close()
    assert server.connections == 3


@dataclass
class Cut:
    """How an answer is cut: into frames with padding or without, and on the way into pieces."""

    content: bytes = b""
    frames: tuple[tuple[int, int | None], ...] = ()
    pieces: tuple[int, ...] = ()


@pytest.fixture(scope="module")
def cutting() -> Iterator[tuple[Cut, int]]:
    """A server that cuts its answers as it is told, and its port."""
    told = Cut()

    def script(call: Call) -> None:
        call.open()
        h2, rest = call.server.h2, message(told.content)
        for size, padding in told.frames:
            if rest:
                h2.send_data(call.stream, rest[:size], pad_length=padding)
                rest = rest[size:]
        for at in range(0, len(rest), 2**14):
            h2.send_data(call.stream, rest[at : at + 2**14])
        h2.send_headers(call.stream, [("grpc-status", "0"), ("grpc-message", "")], end_stream=True)
        sent = h2.data_to_send()
        for size in told.pieces:
            call.server.sock.sendall(sent[:size])
            sent = sent[size:]
        call.server.sock.sendall(sent)

    with h2_server(script) as server:
        yield told, server.port


@settings(max_examples=60, deadline=None)
@given(
    content=st.binary(max_size=20_000) | st.integers(0, 200_000).map(bytes),
    frames=st.lists(st.tuples(st.integers(1, 9000), st.none() | st.integers(0, 255)), max_size=8),
    pieces=st.lists(st.integers(1, 500), max_size=20),
)
def test_an_answer_is_whole_however_it_is_cut(
    cutting: tuple[Cut, int], content: bytes, frames: list[tuple[int, int | None]], pieces: list[int]
) -> None:
    told, port = cutting
    told.content, told.frames, told.pieces = content, tuple(frames), tuple(pieces)
    pool = ConnectionPool(port, PATH, {})
    for _ in range(2):
        connection = pool.acquire(b"question", TIMEOUT_S)
        assert connection.receive(TIMEOUT_S) == content
        pool.release(connection)
    pool.close()
