"""A pooled gRPC connection never gives one call the answer to another, whatever frames the server sends."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from sm.triton.call_failures import Failed
from sm.triton.hpack import encode_string
from sm.triton.wire import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionPool,
    Unreadable,
    frame,
)

SEED = 13
CALLS = 500
CALLERS = 4
#: Seconds. Some servers leave their caller to wait.
TIMEOUT = 0.3
ENDS = END_HEADERS | END_STREAM
STRAY = b"\0\0\0\0\x05stray"


def message(body: bytes, size: int | None = None, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(body) if size is None else size) + body


def status(text: bytes) -> bytes:
    return b"\0" + encode_string("grpc-status") + encode_string(text.decode())


OK = status(b"0")


def answer(stream: int, body: bytes, *, content: bytes | None = None, trailers: bytes = OK) -> bytes:
    """The usual answer, or one with other content or trailers."""
    data = message(body) if content is None else content
    head = frame(HEADERS, END_HEADERS, stream, b"\x88")
    return head + frame(DATA, 0, stream, data) + frame(HEADERS, ENDS, stream, trailers)


def noise(stream: int) -> bytes:
    """Frames that say nothing of a call."""
    return (
        frame(PING, 0, 0, b"12345678")
        + frame(PING, ACK, 0, b"12345678")
        + frame(SETTINGS, ACK, 0, b"")
        + frame(WINDOW_UPDATE, 0, 0, b"\0\0\x10\0")
        + frame(WINDOW_UPDATE, 0, stream, b"\0\0\x10\0")
        + frame(99, 0, stream, b"of a type to come")
    )


def in_pieces(stream: int, body: bytes) -> bytes:
    pieces = b"".join(frame(DATA, 0, stream, bytes((byte,))) for byte in message(body))
    return noise(stream) + pieces + noise(stream) + frame(HEADERS, ENDS, stream, OK)


def padded(stream: int, body: bytes) -> bytes:
    data = frame(DATA, PADDED, stream, b"\x03" + message(body) + bytes(3))
    trailers = b"\x02" + bytes(5) + OK + bytes(2)
    return data + frame(HEADERS, ENDS | PADDED | PRIORITY, stream, trailers)


Way = Callable[[int, bytes], bytes]
#: Answers that are right.
SOUND: dict[str, Way] = {
    "as usual": answer,
    "in pieces with noise between": in_pieces,
    "padded": padded,
    "with a reset behind": lambda n, body: answer(n, body) + frame(RST_STREAM, 0, n, bytes(4)),
    "behind that of an earlier call": lambda n, body: answer(max(0, n - 2), b"stray") + answer(n, body),
    "behind that of a later call": lambda n, body: answer(n + 2, b"stray") + answer(n, body),
    "with a goodbye behind": lambda n, body: answer(n, body) + frame(GOAWAY, 0, 0, bytes(8)),
}
#: Answers that are not, and errors.
UNSOUND: dict[str, Way] = {
    "two messages": lambda n, body: answer(n, body, content=message(body) + STRAY),
    "two answers": lambda n, body: answer(n, body) + answer(n, b"stray"),
    "data behind the end": lambda n, body: answer(n, body) + frame(DATA, 0, n, STRAY),
    "a message before the own": lambda n, body: frame(DATA, 0, n, STRAY) + answer(n, body),
    "a message longer than it is said to be": lambda n, body: answer(
        n, body, content=message(body + b"1", 1)
    ),
    "a message shorter than it is said to be": lambda n, body: answer(n, body, content=message(body, 99)),
    "no message": lambda n, body: answer(n, body, content=b""),
    "half of a message's head": lambda n, body: answer(n, body, content=b"\0\0\0"),
    "a compressed message": lambda n, body: answer(n, body, content=message(body, flag=1)),
    "no trailers": lambda n, body: frame(DATA, END_STREAM, n, message(body)),
    "no status": lambda n, body: answer(n, body, trailers=b"\x88"),
    "a status that is no number": lambda n, body: answer(n, body, trailers=status(b"zero")),
    "a status without end": lambda n, body: answer(n, body, trailers=status(b"1" * 5000)),
    "an error": lambda n, body: answer(n, body, trailers=status(b"13")),
    "trailers cut short": lambda n, body: answer(n, body, trailers=OK[:-1]),
    "trailers in two frames": lambda n, _: frame(HEADERS, END_STREAM, n, OK[:4]) + frame(9, 4, n, OK[4:]),
    "more padding than frame": lambda n, _: frame(DATA, PADDED, n, b"\xffxx") + frame(HEADERS, ENDS, n, OK),
    "padding of nothing": lambda n, _: frame(DATA, PADDED, n, b"") + frame(HEADERS, ENDS | PADDED, n, b""),
    "a short window update": lambda n, body: frame(WINDOW_UPDATE, 0, 0, b"12") + answer(n, body),
    "a long window update": lambda n, body: frame(WINDOW_UPDATE, 0, 0, b"12345") + answer(n, body),
    "a reset": lambda n, _: frame(RST_STREAM, 0, n, bytes(4)),
    "no HTTP/2": lambda _, body: b"HTTP/1.1 400 Bad Request\r\n\r\n" + body,
}
#: Answers after which the server closes.
ENDING: dict[str, Way] = {
    "amid a frame": lambda n, body: answer(n, body)[:-3],
    "before the trailers": lambda n, body: frame(DATA, 0, n, message(body)),
    "at once": lambda _, __: b"",
    "with a goodbye": lambda *_: frame(GOAWAY, 0, 0, bytes(8)),
}
WAYS = {**SOUND, **UNSOUND, **ENDING}


@contextmanager
def misbehaving() -> Iterator[int]:
    """A server that answers the message ``<number>:<way>`` with the number, in that way."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    threads: list[threading.Thread] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threads.append(threading.Thread(target=serve, args=(listener.accept()[0],)))
                threads[-1].start()

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            connection.settimeout(3)
            stream.read(len(PREFACE))
            connection.sendall(frame(SETTINGS, 0, 0, b""))
            while len(head := stream.read(9)) == 9:
                payload = stream.read(int.from_bytes(head[:3], "big"))
                if head[3] != DATA:
                    continue
                number, _, way = payload[5:].partition(b":")
                connection.sendall(WAYS[way.decode()](int.from_bytes(head[5:], "big"), number))
                if way.decode() in ENDING:
                    return

    main = threading.Thread(target=accept)
    main.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        main.join()
        listener.close()
        for thread in threads:
            thread.join(5)


def call(line: ConnectionPool, number: int, way: str) -> bytes | None:
    """The answer to a call; None for an error, or none in time."""
    try:
        connection = line.acquire(f"{number}:{way}".encode(), TIMEOUT)
    except Failed:
        return None
    try:
        found = connection.receive(TIMEOUT)
    except (Failed, Unreadable):
        found = None
    if found is None:
        connection.close()
    else:
        line.release(connection)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_the_call_after_a_strange_answer_gets_its_own(way: str) -> None:
    with misbehaving() as port:
        line = ConnectionPool(port, "/any", {})
        for number in range(3):
            found = call(line, number, way)
            assert found == str(number).encode() if way in SOUND else found in (None, str(number).encode())
            assert call(line, 100 + number, "as usual") == str(100 + number).encode()
        line.close()


def test_no_call_gets_anothers_answer_from_a_server_that_misbehaves() -> None:
    """Any mixture of answers, four callers, one pool: an answer is the call's own or an error."""
    draw = random.Random(SEED)
    turns = [(number, draw.choice([*WAYS, *SOUND, *SOUND])) for number in range(CALLS)]
    with misbehaving() as port:
        line = ConnectionPool(port, "/any", {})
        with ThreadPoolExecutor(CALLERS) as callers:
            found = list(callers.map(lambda turn: call(line, *turn), turns))
        line.close()
    outcomes: Counter[str] = Counter()
    for (number, way), content in zip(turns, found, strict=True):
        assert content in (None, str(number).encode()), way
        assert content is not None or way not in SOUND, way
        outcomes["error" if content is None else "own"] += 1
    assert outcomes["own"] > CALLS / 4
    assert outcomes["error"] > CALLS / 20


def test_random_bytes_for_frames_are_an_error_and_nothing_else() -> None:
    """Sound answers with some of their bytes changed."""
    draw = random.Random(SEED)

    def changed(stream: int, body: bytes) -> bytes:
        content = bytearray(draw.choice(list(SOUND.values()))(stream, body))
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        return bytes(content)

    WAYS["changed"] = changed
    ENDING["changed"] = changed  # the server closes, so nobody waits for what is missing
    try:
        with misbehaving() as port:
            line = ConnectionPool(port, "/any", {})
            own = 0
            for number in range(300):
                call(line, number, "changed")
                after = call(line, 1000 + number, "as usual")
                # None: the server has closed the connection just now.
                assert after in (None, str(1000 + number).encode())
                own += after is not None
            line.close()
            assert own > 200
    finally:
        del WAYS["changed"], ENDING["changed"]
