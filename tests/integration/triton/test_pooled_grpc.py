"""A pooled gRPC connection never returns another call's answer, whatever frames the server sends."""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter
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
from tests.support.scripted_triton import Call, h2_server

pytestmark = pytest.mark.core

CALL_COUNT = 500
#: Short, as some of the servers below never send a whole answer.
TIMEOUT_S = 0.1
#: For an answer of the other servers, which comes for certain.
CERTAIN_TIMEOUT_S = 20.0
END_OF_STREAM = END_HEADERS | END_STREAM
HEAD = encode_call_headers("/any", "127.0.0.1", {})
STRAY_MESSAGE = b"\0\0\0\0\x05stray"


def grpc_message(body: bytes, size: int | None = None, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(body) if size is None else size) + body


def status_trailer(text: bytes) -> bytes:
    return b"\0" + encode_string("grpc-status") + encode_string(text.decode())


OK_TRAILER = status_trailer(b"0")


def usual_answer(
    stream: int, body: bytes, *, content: bytes | None = None, trailers: bytes = OK_TRAILER
) -> bytes:
    """The frames of an ordinary answer, or of one with other content or trailers."""
    data = grpc_message(body) if content is None else content
    headers = frame(HEADERS, END_HEADERS, stream, b"\x88")
    return headers + frame(DATA, 0, stream, data) + frame(HEADERS, END_OF_STREAM, stream, trailers)


def answer_in_pieces(stream: int, body: bytes) -> bytes:
    """Frames of a byte each, and frames that do not belong to a call."""
    noise = (
        frame(PING, 0, 0, b"12345678")
        + frame(PING, ACK, 0, b"12345678")
        + frame(SETTINGS, ACK, 0, b"")
        + frame(WINDOW_UPDATE, 0, stream, b"\0\0\x10\0")
        + frame(99, 0, stream, b"of a type to come")
    )
    pieces = (frame(DATA, 0, stream, bytes((byte,))) + noise for byte in grpc_message(body))
    return noise + b"".join(pieces) + frame(HEADERS, END_OF_STREAM, stream, OK_TRAILER)


AnswerMaker = Callable[[int, bytes], bytes]
#: Correct answers, by what is special about them.
GOOD_ANSWERS: dict[str, AnswerMaker] = {
    "as usual": usual_answer,
    "in pieces with noise between": answer_in_pieces,
    "with a reset behind": lambda n, body: usual_answer(n, body) + frame(RST_STREAM, 0, n, bytes(4)),
    "behind that of an earlier call": lambda n, body: (
        usual_answer(max(0, n - 2), b"stray") + usual_answer(n, body)
    ),
    "behind that of a later call": lambda n, body: usual_answer(n + 2, b"stray") + usual_answer(n, body),
    "with a goodbye behind": lambda n, body: usual_answer(n, body) + frame(GOAWAY, 0, 0, bytes(8)),
}
#: Wrong answers, and errors.
BAD_ANSWERS: dict[str, AnswerMaker] = {
    "two messages": lambda n, body: usual_answer(n, body, content=grpc_message(body) + STRAY_MESSAGE),
    "two answers": lambda n, body: usual_answer(n, body) + usual_answer(n, b"stray"),
    "data behind the end": lambda n, body: usual_answer(n, body) + frame(DATA, 0, n, STRAY_MESSAGE),
    "a message before the own": lambda n, body: frame(DATA, 0, n, STRAY_MESSAGE) + usual_answer(n, body),
    "a message longer than it is said to be": lambda n, body: usual_answer(
        n, body, content=grpc_message(body + b"1", 1)
    ),
    "a message shorter than it is said to be": lambda n, body: usual_answer(
        n, body, content=grpc_message(body, 99)
    ),
    "no message": lambda n, body: usual_answer(n, body, content=b""),
    "half of a message's head": lambda n, body: usual_answer(n, body, content=b"\0\0\0"),
    "a compressed message": lambda n, body: usual_answer(n, body, content=grpc_message(body, flag=1)),
    "no trailers": lambda n, body: frame(DATA, END_STREAM, n, grpc_message(body)),
    "no status": lambda n, body: usual_answer(n, body, trailers=b"\x88"),
    "a status that is not a number": lambda n, body: usual_answer(n, body, trailers=status_trailer(b"zero")),
    "a status without end": lambda n, body: usual_answer(n, body, trailers=status_trailer(b"1" * 5000)),
    "an error": lambda n, body: usual_answer(n, body, trailers=status_trailer(b"13")),
    "trailers cut short": lambda n, body: usual_answer(n, body, trailers=OK_TRAILER[:-1]),
    "trailers in two frames": lambda n, _: (
        frame(HEADERS, END_STREAM, n, OK_TRAILER[:4]) + frame(9, 4, n, OK_TRAILER[4:])
    ),
    "more padding than frame": lambda n, _: (
        frame(DATA, PADDED, n, b"\xffxx") + frame(HEADERS, END_OF_STREAM, n, OK_TRAILER)
    ),
    "padding of nothing": lambda n, _: (
        frame(DATA, PADDED, n, b"") + frame(HEADERS, END_OF_STREAM | PADDED, n, b"")
    ),
    "a short window update": lambda n, body: frame(WINDOW_UPDATE, 0, 0, b"12") + usual_answer(n, body),
    "a long window update": lambda n, body: frame(WINDOW_UPDATE, 0, 0, b"12345") + usual_answer(n, body),
    "a reset": lambda n, _: frame(RST_STREAM, 0, n, bytes(4)),
    "no HTTP/2": lambda _, body: b"HTTP/1.1 400 Bad Request\r\n\r\n" + body,
}
#: Answers after which the server closes the connection.
CLOSING_ANSWERS: dict[str, AnswerMaker] = {
    "amid a frame": lambda n, body: usual_answer(n, body)[:-3],
    "before the trailers": lambda n, body: frame(DATA, 0, n, grpc_message(body)),
    "at once": lambda _, __: b"",
    "with a goodbye": lambda *_: frame(GOAWAY, 0, 0, bytes(8)),
}
RANDOM = random.Random(13)


def changed_answer(stream: int, body: bytes) -> bytes:
    """A good answer with some of its bytes changed."""
    content = bytearray(RANDOM.choice([*GOOD_ANSWERS.values()])(stream, body))
    for _ in range(RANDOM.randint(1, 4)):
        content[RANDOM.randrange(len(content))] = RANDOM.randrange(256)
    return bytes(content)


ANSWERS = {**GOOD_ANSWERS, **BAD_ANSWERS, **CLOSING_ANSWERS, "changed": changed_answer}


def misbehave(call: Call) -> None:
    """Answer a message ``<number>:<kind of answer>`` with the number."""
    number, _, kind = call.body[5:].partition(b":")
    call.server.sock.sendall(ANSWERS[kind.decode()](call.stream, number))
    # A call does not wait for missing bytes of a connection that is closed.
    if kind.decode() in (*CLOSING_ANSWERS, "changed"):
        call.server.sock.shutdown(socket.SHUT_RDWR)


def call(pool: ConnectionPool, number: int, kind: str) -> bytes | None:
    """The answer to a call, or None for an error or a time-out."""
    timeout_s = TIMEOUT_S if kind in BAD_ANSWERS else CERTAIN_TIMEOUT_S
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
    kinds = [*GOOD_ANSWERS] * 3 + [*BAD_ANSWERS, *CLOSING_ANSWERS]
    calls = [(number, RANDOM.choice(kinds)) for number in range(CALL_COUNT)]
    with h2_server(misbehave) as server:
        pool = ConnectionPool(server.port)
        with ThreadPoolExecutor(4) as callers:
            contents = list(callers.map(lambda arguments: call(pool, *arguments), calls))
        pool.close()
    outcomes: Counter[str] = Counter()
    for (number, kind), content in zip(calls, contents, strict=True):
        assert content in (None, str(number).encode()), kind
        assert content is not None or kind not in GOOD_ANSWERS, kind
        outcomes["error" if content is None else "own"] += 1
    assert outcomes["own"] > CALL_COUNT / 4
    assert outcomes["error"] > CALL_COUNT / 20


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
