"""The router's own gRPC client against grpcio on the same server: the same answers, and requests that h2 accepts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

import pytest
from chalicelib.remote_channel import RemoteChannel
from grpc import StatusCode, insecure_channel
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from tritonclient.grpc import service_pb2 as pb

from sm.errors import CallerGone, DeadlinePassed, ModelFailed, NotReady
from sm.invocation import Invocation, running
from sm.triton import wire
from sm.triton.channel import OPTIONS, Channel
from sm.triton.server import NO_KEYS
from sm.triton.triton_errors import Failed
from sm.triton.wire import DEFAULT_WINDOW_BYTES, MAX_WINDOW_BYTES
from tests.integration.triton.scripted_triton import (
    OPENING,
    Call,
    H2Server,
    Hearing,
    Script,
    h2_server,
    message,
)

pytestmark = pytest.mark.core

TIMEOUT_S = 10.0
REQUEST = pb.ModelInferRequest(model_name="model", id="7", raw_input_contents=[b"x" * 9000])
RESPONSE = pb.ModelInferResponse(model_name="model", id="7", raw_output_contents=[b"y" * 3000])
ANSWER = message(RESPONSE.SerializeToString())
LONG_RESPONSE = pb.ModelInferResponse(raw_output_contents=[bytes(range(256)) * 20_000])
LONG_ANSWER = message(LONG_RESPONSE.SerializeToString())
#: More than a server takes without a WINDOW_UPDATE, and more than sockets keep.
LONG_REQUEST = pb.ModelInferRequest(model_name="model", raw_input_contents=[b"x" * 300_000])
HUGE_REQUEST = pb.ModelInferRequest(model_name="model", raw_input_contents=[bytes(30_000_000)])
HUGE_RESPONSE = pb.ModelInferResponse(raw_output_contents=[bytes(30_000_000)])
Room = dict[SettingCodes | int, int]


@contextmanager
def channel_to(
    script: Script, room: Room | None = None, hear: Hearing = Call.give_room, huffman: bool = False
) -> Iterator[tuple[Channel, H2Server]]:
    with (
        h2_server(script, settings=room, hear=hear, huffman=huffman) as server,
        closing(Channel(server.port, TIMEOUT_S)) as channel,
    ):
        yield channel, server


def steps(*parts: Script) -> Script:
    def script(call: Call) -> None:
        for part in parts:
            part(call)

    return script


def send(content: bytes, pad: int | None = None, frame_bytes: int = 2**14) -> Script:
    return lambda call: call.send(content, pad, frame_bytes)


def end(status: int = 0, sentence: str | None = None) -> Script:
    return lambda call: call.end(status, sentence)


def headers(*fields: tuple[str, str], is_end: bool = False) -> Script:
    return lambda call: call.server.h2.send_headers(call.stream, fields, end_stream=is_end)


def reset(code: ErrorCodes) -> Script:
    return lambda call: call.server.h2.reset_stream(call.stream, code)


def hang_up(call: Call) -> None:
    call.server.flush()
    call.server.sock.shutdown(socket.SHUT_RDWR)


def send_raw(call: Call, *frames: Frame, extra: bytes = b"") -> None:
    """Send frames directly, although h2 would not allow them at this point."""
    call.server.flush()
    call.server.sock.sendall(b"".join(frame.serialize() for frame in frames) + extra)


def send_padded(call: Call) -> None:
    opening = {"flags": ["END_HEADERS", "PADDED", "PRIORITY"], "pad_length": 7, "stream_weight": 3}
    trailers = {"flags": ["END_HEADERS", "END_STREAM", "PADDED"], "pad_length": 3}
    encode = Encoder().encode
    send_raw(
        call,
        HeadersFrame(call.stream, encode(OPENING, huffman=False), depends_on=0, **opening),
        DataFrame(call.stream, ANSWER[:1], flags=["PADDED"], pad_length=200),
        DataFrame(call.stream, ANSWER[1:], flags=["PADDED"], pad_length=200),
        HeadersFrame(call.stream, encode([("grpc-status", "0")], huffman=False), **trailers),
    )


def send_byte_by_byte(call: Call) -> None:
    call.open()
    call.server.h2.send_data(call.stream, message(b""))
    call.server.h2.send_headers(call.stream, [("grpc-status", "0")], end_stream=True)
    for byte in call.server.h2.data_to_send():
        call.server.sock.sendall(bytes([byte]))


def send_other_frames(call: Call) -> None:
    """Send frames that do not belong to the answer."""
    send_raw(
        call,
        PingFrame(0, b"12345678"),
        SettingsFrame(0, settings={SettingCodes.MAX_CONCURRENT_STREAMS: 50}),
        WindowUpdateFrame(0, 1000),
        WindowUpdateFrame(call.stream, 1000),
        extra=wire.frame(0xF0, 0, 0, b"of an unknown type"),
    )


def say_goodbye(call: Call) -> None:
    send_raw(call, GoAwayFrame(0, last_stream_id=call.stream, error_code=ErrorCodes.NO_ERROR))


OPEN = Call.open
OK = steps(OPEN, send(ANSWER), end())
FULL_QUEUE = (*OPENING, ("grpc-status", "8"), ("grpc-message", "a queue of 100%25 is f%C3%BCll"))
REFUSAL = headers(*FULL_QUEUE, is_end=True)
REFUSAL_AND_RESET = steps(
    REFUSAL, lambda call: send_raw(call, RstStreamFrame(call.stream, ErrorCodes.NO_ERROR))
)
RESETS = {f"RST_STREAM {code.name}": reset(code) for code in ErrorCodes}
#: Correct behaviour of a server that our client reads itself.
READ_LIKE_GRPCIO: dict[str, Script] = {
    "an ordinary answer": OK,
    "an empty message": steps(OPEN, send(message(b"")), end()),
    "megabytes": steps(OPEN, send(LONG_ANSWER), end()),
    "megabytes in small frames": steps(OPEN, send(LONG_ANSWER, frame_bytes=11_111), end()),
    "an answer byte by byte": send_byte_by_byte,
    "other frames in between": steps(
        OPEN, send(ANSWER[:3]), send_other_frames, send(ANSWER[3:]), send_other_frames, end()
    ),
    "GOAWAY and then the answer": steps(say_goodbye, OK),
    "a refusal with nothing before it": REFUSAL,
    "a refusal and a reset behind it": REFUSAL_AND_RESET,
    "a refusal without a sentence": steps(OPEN, end(13)),
    "a refusal behind a message": steps(OPEN, send(ANSWER), end(3)),
    "a code that gRPC does not know": steps(OPEN, end(99, "for a reason")),
    **{f"refused: {code.name}": steps(OPEN, end(code.value[0], "why")) for code in [*StatusCode][1:]},
    **RESETS,
    **{f"{name} in a message": steps(OPEN, send(ANSWER[:100]), script) for name, script in RESETS.items()},
    **{f"hung up after {size}": steps(OPEN, send(ANSWER[:size]), hang_up) for size in (0, 3, 100)},
}
#: Allowed by RFC 9113, but refused by gRPC's C core.
READ_UNLIKE_GRPCIO: dict[str, Script] = {
    "frames with padding": steps(OPEN, send(ANSWER, pad=255, frame_bytes=500), end()),
    "headers with padding and priority": send_padded,
    "early hints": steps(headers((":status", "103")), OK),
}
#: What our client does not read, and does not offer. test_pooled_grpc.py has others.
UNREADABLE: dict[str, Script] = {
    "a compressed message": steps(OPEN, send(b"\1" + ANSWER[1:]), end()),
    "HTTP without gRPC": steps(
        headers((":status", "200"), ("content-type", "text/html")),
        lambda call: call.server.h2.send_data(call.stream, b"<h1>a proxy's page</h1>", end_stream=True),
    ),
    "two messages": steps(OPEN, send(ANSWER * 2), end()),
    "Huffman's code": OK,
}


def response_or_failure(channel: Channel, request: pb.ModelInferRequest = REQUEST) -> object:
    """The response, or the failure's kind, whether its memory is free, and its sentence."""
    try:
        return channel.infer(request)
    except Failed as failure:
        # Each client has its own sentence for a reset.
        sentence = "reset" if "RST_STREAM" in failure.sentence else failure.sentence
        return failure.kind, failure.finished, sentence


def failure(channel: Channel, request: pb.ModelInferRequest = REQUEST) -> tuple[object, bool]:
    with pytest.raises(Failed) as failed:
        channel.infer(request)
    return failed.value.kind, failed.value.finished


def grpcio(port: int, timeout: float, keys: Mapping[str, str] = NO_KEYS) -> Channel:
    """The gateway's channel to a Triton elsewhere, whose calls grpcio makes."""
    return RemoteChannel(insecure_channel(f"127.0.0.1:{port}", OPTIONS), timeout, keys)


def outcomes_of_both(
    script: Script,
    timeout: float = TIMEOUT_S,
    request: pb.ModelInferRequest = REQUEST,
    hear: Hearing = Call.give_room,
) -> list[list[object]]:
    """The outcomes of two calls on one channel, with our own client and with grpcio alone."""
    outcomes = []
    for connect in (Channel, grpcio):
        with (
            h2_server(script, hear=hear) as server,
            closing(connect(server.port, timeout)) as channel,
        ):
            outcomes.append([response_or_failure(channel, request) for _ in range(2)])
    return outcomes


@pytest.mark.parametrize("name", READ_LIKE_GRPCIO)
def test_an_answer_is_read_as_grpcio_reads_it(name: str) -> None:
    ours, grpcios = outcomes_of_both(READ_LIKE_GRPCIO[name])
    assert ours == grpcios


@pytest.mark.parametrize("name", READ_UNLIKE_GRPCIO)
def test_valid_http2_that_grpcio_refuses_is_read(name: str) -> None:
    ours, grpcios = outcomes_of_both(READ_UNLIKE_GRPCIO[name])
    assert ours == [RESPONSE] * 2
    assert RESPONSE not in grpcios


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_answer_that_cannot_be_read_fails_its_call_alone(name: str) -> None:
    with channel_to(UNREADABLE[name], huffman=name == "Huffman's code") as (channel, server):
        assert [failure(channel) for _ in range(2)] == [(ModelFailed, True)] * 2
    assert len(server.calls) == 2, "nothing is sent a second time"


def test_an_answer_that_never_becomes_complete_ends_at_the_deadline() -> None:
    ours, grpcios = outcomes_of_both(OPEN, timeout=0.3)
    assert ours == grpcios
    assert ours[0][0] is DeadlinePassed  # type: ignore[index]


def test_our_client_sends_the_same_headers_and_body_as_grpcio() -> None:
    requests = []
    for connect in (Channel, grpcio):
        with h2_server(OK) as server:
            channel = connect(server.port, TIMEOUT_S, {"triton-key": "k"})
            channel.infer(REQUEST)
            channel.close()
        (call,) = server.calls
        assert call.body == message(REQUEST.SerializeToString())
        requests.append(headers := dict(call.headers))
        assert headers.pop("grpc-timeout")
        assert headers.pop(":authority").startswith("127.0.0.1:")
    # Ours offers no compression and does not name a library.
    assert {requests[1].pop(name, "") for name in ("user-agent", "grpc-accept-encoding")}
    assert requests[0] == requests[1]


@pytest.mark.parametrize(
    ("script", "room", "connections"),
    [
        pytest.param(OK, {}, 1, id="kept"),
        pytest.param(steps(say_goodbye, OK), {}, 5, id="after a GOAWAY"),
        pytest.param(OK, {SettingCodes.MAX_CONCURRENT_STREAMS: 0}, 5, id="no second call"),
    ],
)
def test_connections_are_reused_as_far_as_the_server_wants(
    script: Script, room: Room, connections: int
) -> None:
    with channel_to(script, room) as (channel, server):
        assert [channel.infer(REQUEST) for _ in range(5)] == [RESPONSE] * 5
    assert server.connections == connections


def test_more_bytes_than_a_flow_control_window_are_sent_and_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without WINDOW_UPDATE frames either side would stop after 64 KiB."""
    monkeypatch.setattr(wire, "WINDOW_UPDATE_BYTES", 2**14)
    monkeypatch.setattr(wire, "PREFACE", wire.preface(window=2**18))
    long = pb.ModelInferResponse(raw_output_contents=[bytes(60_000)])
    with channel_to(lambda call: call.answer(long.SerializeToString())) as (channel, server):
        assert [channel.infer(REQUEST) for _ in range(50)] == [long] * 50
    assert server.connections == 1


def shrink_window(call: Call) -> None:
    """Make the window of open streams smaller than what was already sent."""
    if len(call.body) == call.unacknowledged and call.body:
        call.server.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    call.give_room()


def ask_first(call: Call) -> None:
    """Give room only to a caller that answers a PING in the middle of its message."""
    if call.server.pongs:
        call.give_room()
    elif call.body:
        call.server.h2.ping(b"12345678")


@pytest.mark.parametrize(
    ("room", "hear"),
    [
        pytest.param({}, Call.give_room, id="the usual window"),
        pytest.param({SettingCodes.INITIAL_WINDOW_SIZE: 1000}, Call.give_room, id="a small window"),
        pytest.param({}, shrink_window, id="a window that shrinks"),
        pytest.param({}, ask_first, id="room after a PING"),
    ],
)
def test_a_long_message_is_sent_as_the_server_has_room_for_it(room: Room, hear: Hearing) -> None:
    requests = [LONG_REQUEST, REQUEST, LONG_REQUEST]
    with channel_to(OK, room, hear) as (channel, server):
        assert [channel.infer(request) for request in requests] == [RESPONSE] * 3
    assert [call.body for call in server.calls] == [message(each.SerializeToString()) for each in requests]
    assert server.connections == 1


def early(script: Script) -> Hearing:
    """Run a script in the middle of a message, and ignore the rest."""

    def hear(call: Call) -> None:
        if not call.is_answered and call.body:
            call.is_answered = True
            script(call)
        call.give_room()

    return hear


EARLY: dict[str, Script] = {
    "an answer": OK,
    "a refusal": REFUSAL,
    "a refusal and a reset behind it": REFUSAL_AND_RESET,
    "hung up": steps(OPEN, hang_up),
    **RESETS,
}


@pytest.mark.parametrize("name", EARLY)
def test_a_call_that_ends_before_all_of_it_is_sent_ends_as_with_grpcio(name: str) -> None:
    ours, grpcios = outcomes_of_both(OK, request=LONG_REQUEST, hear=early(EARLY[name]))
    assert ours == grpcios


def test_a_call_that_a_goaway_refuses_was_not_begun() -> None:
    def refuse(call: Call) -> None:
        send_raw(call, GoAwayFrame(0, last_stream_id=0, error_code=ErrorCodes.NO_ERROR))

    with channel_to(OK, hear=early(refuse)) as (channel, _):
        assert failure(channel, LONG_REQUEST) == (NotReady, True)


def open_wide(call: Call) -> None:
    """Take the whole message at once, as far as flow control goes."""
    call.server.h2.increment_flow_control_window(MAX_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)
    call.server.flush()


WIDE_OPEN: Room = {SettingCodes.INITIAL_WINDOW_SIZE: MAX_WINDOW_BYTES}


def test_an_answer_comes_through_when_both_sides_have_more_to_send_than_sockets_keep() -> None:
    """The server reads nothing while it sends."""
    hear = early(steps(open_wide, lambda call: call.answer(HUGE_RESPONSE.SerializeToString())))
    with channel_to(OK, WIDE_OPEN, hear) as (channel, _):
        assert channel.infer(HUGE_REQUEST) == HUGE_RESPONSE


@pytest.mark.parametrize("kind", [DeadlinePassed, CallerGone])
@pytest.mark.parametrize("stalls", ["window", "socket"])
def test_a_call_of_a_server_that_stalls_ends_with_its_invocation(stalls: str, kind: type[Exception]) -> None:
    """The server's window does not open, or it reads nothing."""
    has_begun, ended = threading.Event(), threading.Event()

    def stall(call: Call) -> None:
        has_begun.set()
        if stalls == "socket" and not ended.is_set():
            open_wide(call)
            ended.wait(TIMEOUT_S)

    request, room = (HUGE_REQUEST, WIDE_OPEN) if stalls == "socket" else (LONG_REQUEST, None)
    if kind is DeadlinePassed:
        invocation = Invocation(time.monotonic() + 0.5)
    else:
        invocation = Invocation(time.monotonic() + TIMEOUT_S, has_begun.is_set)
    with channel_to(OK, room, stall) as (channel, _):
        with running(invocation):
            outcome = failure(channel, request)
        ended.set()
    assert outcome == (kind, False)
