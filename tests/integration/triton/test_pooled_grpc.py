"""A pooled gRPC connection never returns another call's answer, whatever frames the server sends."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from sm.triton.triton_errors import Failed
from sm.triton.wire import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionPool,
    Unreadable,
    encode_call_headers,
    encode_string,
    frame,
)
from tests.integration.triton.scripted_triton import Call, h2_server

pytestmark = pytest.mark.core

CALL_COUNT = 500
#: Short, as some of the servers below never send a whole answer.
TIMEOUT_S = 0.1
#: For an answer of the other servers, which comes for certain.
CERTAIN_TIMEOUT_S = 20.0
END_OF_STREAM = END_HEADERS | END_STREAM
HEAD = encode_call_headers("/any", "127.0.0.1", {})


def grpc_message(body: bytes, size: int | None = None, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(body) if size is None else size) + body


def trailer(status: str) -> bytes:
    return b"\0" + encode_string("grpc-status") + encode_string(status)


OK = trailer("0")
STRAY_MESSAGE = grpc_message(b"stray")


def answer(stream: int, content: bytes, trailers: bytes = OK) -> bytes:
    """The frames of an ordinary answer, whatever their content."""
    headers = frame(HEADERS, END_HEADERS, stream, b"\x88")
    return headers + frame(DATA, 0, stream, content) + frame(HEADERS, END_OF_STREAM, stream, trailers)


def stray(stream: int) -> bytes:
    return answer(stream, STRAY_MESSAGE)


def in_pieces(stream: int, content: bytes) -> bytes:
    """Frames of a byte each, and frames that do not belong to a call."""
    noise = (
        frame(PING, 0, 0, b"12345678")
        + frame(PING, ACK, 0, b"12345678")
        + frame(SETTINGS, ACK, 0, b"")
        + frame(WINDOW_UPDATE, 0, stream, b"\0\0\x10\0")
        + frame(99, 0, stream, b"of a type to come")
    )
    pieces = (frame(DATA, 0, stream, bytes((byte,))) + noise for byte in content)
    return noise + b"".join(pieces) + frame(HEADERS, END_OF_STREAM, stream, OK)


#: The bytes of an answer to a stream, with a number as a message of gRPC.
Maker = Callable[[int, bytes], bytes]
#: Correct answers, by what is special about them.
GOOD: dict[str, Maker] = {
    "as usual": answer,
    "in pieces with noise between": in_pieces,
    "with a reset behind": lambda n, own: answer(n, own) + frame(RST_STREAM, 0, n, bytes(4)),
    "behind that of an earlier call": lambda n, own: stray(max(0, n - 2)) + answer(n, own),
    "behind that of a later call": lambda n, own: stray(n + 2) + answer(n, own),
    "with a goodbye behind": lambda n, own: answer(n, own) + frame(GOAWAY, 0, 0, bytes(8)),
}
#: Wrong answers, and errors.
BAD: dict[str, Maker] = {
    "two messages": lambda n, own: answer(n, own + STRAY_MESSAGE),
    "two answers": lambda n, own: answer(n, own) + stray(n),
    "data behind the end": lambda n, own: answer(n, own) + frame(DATA, 0, n, STRAY_MESSAGE),
    "a message before the own": lambda n, own: frame(DATA, 0, n, STRAY_MESSAGE) + answer(n, own),
    "a message longer than it is said to be": lambda n, own: answer(n, grpc_message(own[5:] + b"1", 1)),
    "a message shorter than it is said to be": lambda n, own: answer(n, grpc_message(own[5:], 99)),
    "no message": lambda n, _: answer(n, b""),
    "half of a message's head": lambda n, _: answer(n, b"\0\0\0"),
    "a compressed message": lambda n, own: answer(n, b"\1" + own[1:]),
    "no trailers": lambda n, own: frame(DATA, END_STREAM, n, own),
    "no status": lambda n, own: answer(n, own, b"\x88"),
    "a status that is not a number": lambda n, own: answer(n, own, trailer("zero")),
    "a status without end": lambda n, own: answer(n, own, trailer("1" * 5000)),
    "an error": lambda n, own: answer(n, own, trailer("13")),
    "trailers cut short": lambda n, own: answer(n, own, OK[:-1]),
    "trailers in two frames": lambda n, _: frame(HEADERS, END_STREAM, n, OK[:4]) + frame(9, 4, n, OK[4:]),
    "more padding than frame": lambda n, _: (
        frame(DATA, PADDED, n, b"\xffxx") + frame(HEADERS, END_OF_STREAM, n, OK)
    ),
    "padding of nothing": lambda n, _: frame(DATA, PADDED, n, b"") + frame(HEADERS, END_OF_STREAM, n, OK),
    "a short window update": lambda n, own: frame(WINDOW_UPDATE, 0, 0, b"12") + answer(n, own),
    "a long window update": lambda n, own: frame(WINDOW_UPDATE, 0, 0, b"12345") + answer(n, own),
    "a reset": lambda n, _: frame(RST_STREAM, 0, n, bytes(4)),
    "no HTTP/2": lambda _, own: b"HTTP/1.1 400 Bad Request\r\n\r\n" + own,
}
#: Answers after which the server closes the connection.
CLOSING: dict[str, Maker] = {
    "amid a frame": lambda n, own: answer(n, own)[:-3],
    "before the trailers": lambda n, own: frame(DATA, 0, n, own),
    "at once": lambda *_: b"",
    "with a goodbye": lambda *_: frame(GOAWAY, 0, 0, bytes(8)),
}
RANDOM = random.Random(13)


def changed(stream: int, own: bytes) -> bytes:
    """A good answer with some of its bytes changed."""
    content = bytearray(RANDOM.choice([*GOOD.values()])(stream, own))
    for _ in range(RANDOM.randint(1, 4)):
        content[RANDOM.randrange(len(content))] = RANDOM.randrange(256)
    return bytes(content)


ANSWERS = {**GOOD, **BAD, **CLOSING, "changed": changed}


def misbehave(call: Call) -> None:
    """Answer a message ``<number>:<kind of answer>`` with the number."""
    number, _, kind = call.body[5:].partition(b":")
    call.server.sock.sendall(ANSWERS[kind.decode()](call.stream, grpc_message(number)))
    # A call does not wait for missing bytes of a connection that is closed.
    if kind.decode() in (*CLOSING, "changed"):
        call.server.sock.shutdown(socket.SHUT_RDWR)


def call(pool: ConnectionPool, number: int, kind: str) -> bytes | None:
    """The answer to a call, or None for an error or a time-out."""
    timeout_s = TIMEOUT_S if kind in BAD else CERTAIN_TIMEOUT_S
    connection = pool.acquire(timeout_s)
    try:
        connection.send(HEAD, f"{number}:{kind}".encode(), timeout_s)
        content = connection.receive(timeout_s)
    except (Failed, Unreadable):
        content = None
    if content is None:
        connection.close()
    else:
        pool.release(connection)
    return content


def test_no_call_gets_anothers_answer_from_a_server_that_misbehaves() -> None:
    """Four callers on one pool, with answers at random: each call gets its own answer or an error."""
    kinds = [*GOOD] * 3 + [*BAD, *CLOSING]
    calls = [(number, RANDOM.choice(kinds)) for number in range(CALL_COUNT)]
    with h2_server(misbehave) as server:
        pool = ConnectionPool(server.port)
        with ThreadPoolExecutor(4) as callers:
            contents = list(callers.map(lambda arguments: call(pool, *arguments), calls))
        pool.close()
    for (number, kind), content in zip(calls, contents, strict=True):
        assert content in (None, str(number).encode()), kind
        assert content is not None or kind not in GOOD, kind
    assert CALL_COUNT / 20 < contents.count(None) < CALL_COUNT * 3 / 4


def test_frames_with_random_bytes_never_give_another_calls_answer() -> None:
    with h2_server(misbehave) as server:
        pool = ConnectionPool(server.port)
        own_answers = 0
        for number in range(300):
            call(pool, number, "changed")
            content = call(pool, 1000 + number, "as usual")
            # None: the server has just closed the connection.
            assert content in (None, str(1000 + number).encode())
            own_answers += content is not None
        pool.close()
    assert own_answers > 200
