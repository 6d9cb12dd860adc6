"""A WebSocket reads frames in whatever pieces they arrive.

tests/integration/streaming/test_conversations.py plays all cases through the box, and a flood after a broken frame.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from sm.errors import CallerGone
from sm.router.websocket import WebSocket
from tests.support.websocket_frames import (
    BINARY,
    CASES,
    CLOSE,
    CONTINUATION,
    PING,
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


SHORT_CASES = [case for case in CASES if sum(map(len, case.sent)) < 400]


@pytest.mark.parametrize("case", SHORT_CASES, ids=lambda case: case.name)
def test_frames_may_arrive_byte_by_byte(caller: socket.socket, case: Case) -> None:
    check(play(caller, case, piece=1), case)


def test_a_message_over_the_limit_ends_the_connection_whatever_follows_it(caller: socket.socket) -> None:
    too_long = frame(BINARY, b"x" * (MAX_BYTES + 1), fin=False)
    case = Case("too long", [too_long, frame(PING) + frame(CONTINUATION)], close=TOO_BIG)
    check(play(caller, case), case)
