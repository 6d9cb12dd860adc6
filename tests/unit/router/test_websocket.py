"""A WebSocket answers valid frames, and closes the connection on every other with the protocol's code."""

from __future__ import annotations

import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from sm.errors import CallerGone
from sm.router import websocket
from sm.router.websocket import WebSocket
from tests.support.websocket_frames import (
    BINARY,
    CASES,
    CLOSE,
    CONTINUATION,
    PING,
    TEXT,
    TOO_BIG,
    Case,
    Frame,
    close_code,
    frame,
    play,
)

MAX_BYTES = 2**19


def echo(connection: socket.socket) -> None:
    """Serve a connection: answer each message with itself."""
    server = WebSocket(connection, MAX_BYTES)
    try:
        for message in server.messages(10.0, lambda: False):
            server.send(message, text=False)
    except (CallerGone, OSError):
        pass
    finally:
        connection.close()


@pytest.fixture
def caller() -> Iterator[socket.socket]:
    """The caller's side of a WebSocket that echoes."""
    caller, served = socket.socketpair()
    caller.settimeout(20)
    thread = threading.Thread(target=echo, args=(served,))
    thread.start()
    with caller:
        yield caller
    thread.join(20)
    assert not thread.is_alive()


def check(frames: list[Frame], case: Case) -> None:
    """Check the server's frames. The echo does not keep the opcode."""
    *replies, (opcode, payload) = frames
    assert (opcode, close_code(payload)) == (CLOSE, case.close)
    assert [body for _, body in replies] == [body for _, body in case.replies]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_frames_are_answered_as_the_protocol_says(caller: socket.socket, case: Case) -> None:
    check(play(caller, case), case)


SHORT_CASES = [case for case in CASES if sum(map(len, case.sent)) < 400]


@pytest.mark.parametrize("case", SHORT_CASES, ids=lambda case: case.name)
def test_frames_may_arrive_byte_by_byte(caller: socket.socket, case: Case) -> None:
    check(play(caller, case, piece=1), case)


def test_a_message_over_the_limit_ends_the_connection_whatever_follows_it(caller: socket.socket) -> None:
    too_long = frame(BINARY, b"x" * (MAX_BYTES + 1), fin=False)
    case = Case("too long", [too_long, frame(PING) + frame(CONTINUATION)], close=TOO_BIG)
    check(play(caller, case), case)


@pytest.mark.parametrize(
    "broken",
    [
        frame(TEXT, b"\xff"),
        frame(TEXT, b"x", masked=False),
        frame(TEXT, b"x", rsv=4),
        frame(3),
        frame(CONTINUATION, b"x"),
        frame(CLOSE, b"x"),
        frame(BINARY, b"x" * (MAX_BYTES + 1)),
    ],
    ids=["text", "unmasked", "rsv", "opcode", "continuation", "close", "too long"],
)
def test_after_a_broken_frame_nothing_more_is_kept(caller: socket.socket, broken: bytes) -> None:
    """A flood after it costs no memory, and lasts no longer than the closing handshake."""
    flood = frame(BINARY, bytes(2**20), fin=False)
    tracemalloc.start()
    started = time.monotonic()
    with pytest.raises(OSError):
        caller.sendall(broken)
        while time.monotonic() < started + 10:
            caller.sendall(flood)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20
    assert time.monotonic() - started < 5 * websocket.CLOSE_TIMEOUT_S
