"""The router's own gRPC client against grpcio on the same server: the same answers, and requests that h2 accepts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from grpc import Channel as GrpcChannel
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
from sm.triton.triton_errors import Failed
from sm.triton.wire import DEFAULT_WINDOW_BYTES, MAX_WINDOW_BYTES
from tests.support.scripted_triton import OPENING, Call, H2Server, Hearing, Script, h2_server, message

pytestmark = pytest.mark.core

TIMEOUT_S = 10.0
REQUEST = pb.ModelInferRequest(model_name="model", id="7", raw_input_contents=[b"x" * 9000])
RESPONSE = pb.ModelInferResponse(model_name="model", id="7", raw_output_contents=[b"y" * 3000])
RESPONSE_BYTES = RESPONSE.SerializeToString()
#: More than a server takes without a WINDOW_UPDATE, and more than sockets keep.
LONG_REQUEST = pb.ModelInferRequest(model_name="model", raw_input_contents=[b"x" * 300_000])
HUGE_REQUEST = pb.ModelInferRequest(model_name="model", raw_input_contents=[bytes(30_000_000)])
HUGE_ANSWER = pb.ModelInferResponse(raw_output_contents=[bytes(30_000_000)])
LONG_RESPONSE = pb.ModelInferResponse(model_name="model", raw_output_contents=[bytes(range(256)) * 20_000])


@contextmanager
def channel_to(
    script: Script,
    timeout_s: float = TIMEOUT_S,
    room: dict[SettingCodes | int, int] | None = None,
    hear: Hearing = Call.give_room,
    huffman: bool = False,
) -> Iterator[tuple[Channel, H2Server]]:
    with (
        h2_server(script, settings=room, hear=hear, huffman=huffman) as server,
        closing(Channel(server.port, timeout_s)) as channel,
    ):
        yield channel, server


def send_raw(call: Call, *frames: Frame, extra: bytes = b"") -> None:
    """Send frames directly, although h2 would not allow them at this point."""
    call.server.flush()
    call.server.sock.sendall(b"".join(frame.serialize() for frame in frames) + extra)


def encode_headers(*headers: tuple[str, str]) -> bytes:
    return Encoder().encode(headers, huffman=False)


def fail_with(code: int, sentence: str | None = "for a reason") -> Script:
    def script(call: Call) -> None:
        call.open()
        call.end(code, sentence)

    return script


def fail_at_once(call: Call) -> None:
    trailers = [*OPENING, ("grpc-status", "8"), ("grpc-message", "a queue of 100%25 is f%C3%BCll")]
    call.server.h2.send_headers(call.stream, trailers, end_stream=True)


def fail_and_reset(call: Call) -> None:
    fail_at_once(call)
    send_raw(call, RstStreamFrame(call.stream, ErrorCodes.NO_ERROR))


def reset_with(code: ErrorCodes, opened: bool) -> Script:
    def script(call: Call) -> None:
        if opened:
            call.open()
            call.send(message(RESPONSE_BYTES)[:100])
        call.server.h2.reset_stream(call.stream, code)

    return script


def send_padded(call: Call) -> None:
    content = message(RESPONSE_BYTES)
    opening = {"flags": ["END_HEADERS", "PADDED", "PRIORITY"], "pad_length": 7, "stream_weight": 3}
    end = {"flags": ["END_HEADERS", "END_STREAM", "PADDED"], "pad_length": 3}
    send_raw(
        call,
        HeadersFrame(call.stream, encode_headers(*OPENING), depends_on=0, **opening),
        *(
            DataFrame(call.stream, part, flags=["PADDED"], pad_length=200)
            for part in (content[:1], content[1:])
        ),
        HeadersFrame(call.stream, encode_headers(("grpc-status", "0")), **end),
    )


def send_byte_by_byte(call: Call) -> None:
    call.open()
    call.server.h2.send_data(call.stream, message(b""))
    call.server.h2.send_headers(call.stream, [("grpc-status", "0")], end_stream=True)
    for byte in call.server.h2.data_to_send():
        call.server.sock.sendall(bytes([byte]))


def send_with_other_frames(call: Call) -> None:
    """Send the answer with frames in between that do not belong to it."""
    call.open()
    data = message(RESPONSE_BYTES)
    for part in (data[:3], data[3:50], data[50:]):
        call.send(part)
        send_raw(
            call,
            PingFrame(0, b"12345678"),
            SettingsFrame(0, settings={SettingCodes.MAX_CONCURRENT_STREAMS: 50}),
            WindowUpdateFrame(0, 1000),
            WindowUpdateFrame(call.stream, 1000),
            extra=wire.frame(0xF0, 0, 0, b"of an unknown type"),
        )
    call.end()


def send_early_hints(call: Call) -> None:
    call.server.h2.send_headers(call.stream, [(":status", "103")])
    call.answer(RESPONSE_BYTES)


def send_goaway(call: Call) -> None:
    send_raw(call, GoAwayFrame(0, last_stream_id=call.stream, error_code=ErrorCodes.NO_ERROR))
    call.answer(RESPONSE_BYTES)


def hang_up_after(after: int) -> Script:
    def script(call: Call) -> None:
        call.open()
        call.send(message(RESPONSE_BYTES)[:after])
        call.server.flush()
        call.server.sock.shutdown(socket.SHUT_RDWR)

    return script


def send_body(content: bytes, status: int = 0) -> Script:
    def script(call: Call) -> None:
        call.open()
        call.send(content)
        call.end(status)

    return script


def send_message(content: bytes, pad: int | None = None, frame_bytes: int = 2**14) -> Script:
    def script(call: Call) -> None:
        call.open()
        call.send(message(content), pad, frame_bytes)
        call.end()

    return script


def send_http_page(call: Call) -> None:
    call.server.h2.send_headers(call.stream, [(":status", "200"), ("content-type", "text/html")])
    call.server.h2.send_data(call.stream, b"<h1>a proxy's page</h1>", end_stream=True)


def send_response(call: Call) -> None:
    call.answer(RESPONSE_BYTES)


#: Correct behaviour of a server that our client reads itself.
READ_LIKE_GRPCIO: dict[str, Script] = {
    "an ordinary answer": send_response,
    "an empty message": send_message(b""),
    "megabytes": send_message(LONG_RESPONSE.SerializeToString()),
    "megabytes in small frames": send_message(LONG_RESPONSE.SerializeToString(), frame_bytes=11_111),
    "an answer byte by byte": send_byte_by_byte,
    "other frames in between": send_with_other_frames,
    "GOAWAY and then the answer": send_goaway,
    "a refusal with nothing before it": fail_at_once,
    "a refusal and a reset behind it": fail_and_reset,
    "a refusal without a sentence": fail_with(13, None),
    "a refusal behind a message": send_body(message(RESPONSE_BYTES), 3),
    "a code that gRPC does not know": fail_with(99),
    **{f"refused: {code.name}": fail_with(code.value[0]) for code in StatusCode if code is not StatusCode.OK},
    **{f"RST_STREAM {code.name}": reset_with(code, False) for code in ErrorCodes},
    **{f"RST_STREAM {code.name} in a message": reset_with(code, True) for code in ErrorCodes},
    "hung up before the message": hang_up_after(0),
    "hung up in the message's head": hang_up_after(3),
    "hung up in the message": hang_up_after(100),
}
#: Allowed by RFC 9113, but refused by gRPC's C core.
READ_UNLIKE_GRPCIO: dict[str, Script] = {
    "frames with padding": send_message(RESPONSE_BYTES, pad=255, frame_bytes=500),
    "headers with padding and priority": send_padded,
    "early hints": send_early_hints,
}
#: What our client does not read, and does not offer. test_pooled_grpc.py has others.
UNREADABLE: dict[str, Script] = {
    "a compressed message": send_body(b"\1" + message(RESPONSE_BYTES)[1:]),
    "HTTP without gRPC": send_http_page,
    "two messages": send_body(message(RESPONSE_BYTES) * 2),
}


def response_or_failure(channel: Channel, request: pb.ModelInferRequest = REQUEST) -> object:
    """The response, or the failure's kind, whether its memory is free, and its sentence."""
    try:
        return channel.infer(request)
    except Failed as failure:
        # Each client has its own sentence for a reset.
        sentence = "reset" if "RST_STREAM" in failure.sentence else failure.sentence
        return failure.kind, failure.finished, sentence


def grpcio(port: int) -> GrpcChannel:
    """A channel as to a Triton elsewhere, whose calls grpcio makes."""
    return insecure_channel(f"127.0.0.1:{port}", OPTIONS)


def outcomes_of_both(
    script: Script,
    timeout: float = TIMEOUT_S,
    request: pb.ModelInferRequest = REQUEST,
    hear: Hearing = Call.give_room,
) -> dict[str, list[object]]:
    """The outcomes of two calls on one channel, with our own client and with grpcio alone."""
    outcomes = {}
    for name in ("wire", "grpcio"):
        with h2_server(script, hear=hear) as server:
            port = server.port if name == "wire" else grpcio(server.port)
            with closing(Channel(port, timeout)) as channel:
                outcomes[name] = [response_or_failure(channel, request) for _ in range(2)]
    return outcomes


@pytest.mark.parametrize("name", READ_LIKE_GRPCIO)
def test_an_answer_is_read_as_grpcio_reads_it(name: str) -> None:
    outcomes = outcomes_of_both(READ_LIKE_GRPCIO[name])
    assert outcomes["wire"] == outcomes["grpcio"]


@pytest.mark.parametrize("name", READ_UNLIKE_GRPCIO)
def test_valid_http2_that_grpcio_refuses_is_read(name: str) -> None:
    outcomes = outcomes_of_both(READ_UNLIKE_GRPCIO[name])
    assert outcomes["wire"] == [RESPONSE] * 2
    assert RESPONSE not in outcomes["grpcio"]


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_answer_that_cannot_be_read_fails_its_call_alone(name: str) -> None:
    with channel_to(UNREADABLE[name]) as (channel, server):
        assert [response_or_failure(channel)[:2] for _ in range(2)] == [(ModelFailed, True)] * 2  # type: ignore[index]
    assert len(server.calls) == 2, "nothing is sent a second time"


def test_an_answer_that_never_becomes_complete_ends_at_the_deadline() -> None:
    outcomes = outcomes_of_both(lambda call: call.open(), timeout=0.3)
    assert outcomes["wire"] == outcomes["grpcio"]
    assert {failure[0] for failure in outcomes["wire"]} == {DeadlinePassed}  # type: ignore[index]


def test_huffmans_code_is_not_read() -> None:
    with channel_to(send_response, huffman=True) as (channel, _), pytest.raises(Failed, match="Huffman"):
        channel.infer(REQUEST)


def test_our_client_sends_the_same_headers_and_body_as_grpcio() -> None:
    requests = []
    for connect in (int, grpcio):
        with h2_server(send_response) as server:
            channel = Channel(connect(server.port), TIMEOUT_S, {"triton-key": "k"})
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
        pytest.param(send_response, {}, 1, id="kept"),
        pytest.param(send_goaway, {}, 5, id="after a GOAWAY"),
        pytest.param(send_response, {SettingCodes.MAX_CONCURRENT_STREAMS: 0}, 5, id="no second call"),
    ],
)
def test_connections_are_reused_as_far_as_the_server_wants(
    script: Script, room: dict[SettingCodes | int, int], connections: int
) -> None:
    with channel_to(script, room=room) as (channel, server):
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


#: What a server allows: its settings, and how it goes on.
ROOMS: dict[str, tuple[dict[SettingCodes | int, int], Hearing]] = {
    "the usual window": ({}, Call.give_room),
    "a small window": ({SettingCodes.INITIAL_WINDOW_SIZE: 1000}, Call.give_room),
    "a window that shrinks": ({}, shrink_window),
    "room after a PING": ({}, ask_first),
}


@pytest.mark.parametrize("name", ROOMS)
def test_a_long_message_is_sent_as_the_server_has_room_for_it(name: str) -> None:
    with channel_to(send_response, room=ROOMS[name][0], hear=ROOMS[name][1]) as (channel, server):
        assert [channel.infer(request) for request in (LONG_REQUEST, REQUEST, LONG_REQUEST)] == [RESPONSE] * 3
    bodies = [message(request.SerializeToString()) for request in (LONG_REQUEST, REQUEST, LONG_REQUEST)]
    assert [call.body for call in server.calls] == bodies
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
    "an answer": send_response,
    "a refusal": fail_at_once,
    "a refusal and a reset behind it": fail_and_reset,
    "hung up": hang_up_after(0),
    **{f"RST_STREAM {code.name}": reset_with(code, False) for code in ErrorCodes},
}


@pytest.mark.parametrize("name", EARLY)
def test_a_call_that_ends_before_all_of_it_is_sent_ends_as_with_grpcio(name: str) -> None:
    outcomes = outcomes_of_both(send_response, request=LONG_REQUEST, hear=early(EARLY[name]))
    assert outcomes["wire"] == outcomes["grpcio"]


def test_a_call_that_a_goaway_refuses_was_not_begun() -> None:
    def refuse(call: Call) -> None:
        send_raw(call, GoAwayFrame(0, last_stream_id=0, error_code=ErrorCodes.NO_ERROR))

    with channel_to(send_response, hear=early(refuse)) as (channel, _):
        assert response_or_failure(channel, LONG_REQUEST)[:2] == (NotReady, True)  # type: ignore[index]


def open_wide(call: Call) -> None:
    """Take the whole message at once, as far as flow control goes."""
    call.server.h2.increment_flow_control_window(MAX_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)
    call.server.flush()


WIDE_OPEN: dict[SettingCodes | int, int] = {SettingCodes.INITIAL_WINDOW_SIZE: MAX_WINDOW_BYTES}


def test_an_answer_comes_through_when_both_sides_have_more_to_send_than_sockets_keep() -> None:
    """The server reads nothing while it sends."""

    def answer_without_reading(call: Call) -> None:
        open_wide(call)
        call.answer(HUGE_ANSWER.SerializeToString())

    with channel_to(send_response, room=WIDE_OPEN, hear=early(answer_without_reading)) as (channel, _):
        assert channel.infer(HUGE_REQUEST) == HUGE_ANSWER


@pytest.mark.parametrize("kind", [DeadlinePassed, CallerGone])
@pytest.mark.parametrize("stalls", ["window", "socket"])
def test_a_call_of_a_server_that_stalls_ends_with_its_invocation(
    stalls: str, kind: type[DeadlinePassed | CallerGone]
) -> None:
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
    with channel_to(send_response, room=room, hear=stall) as (channel, _):
        with running(invocation):
            outcome = response_or_failure(channel, request)
        ended.set()
    assert outcome[:2] == (kind, False)  # type: ignore[index]
