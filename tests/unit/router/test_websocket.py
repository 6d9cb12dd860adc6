"""A WebSocket reads frames in whatever pieces they arrive.

tests/integration/streaming/test_conversations.py plays all cases through the box, and a flood after a broken frame.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sm.errors import CallerGone, Forbidden
from sm.invocation import Invocation
from sm.router.websocket import WebSocket, check_origin
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
#: Frames of a caller who sends on: many more than fit into the time of the test.
MAX_FRAMES = 10**5


def echo(connection: socket.socket, seconds: float) -> None:
    """Serve a connection: answer each message with itself."""
    server = WebSocket(connection, MAX_BYTES, seconds)
    with connection, suppress(CallerGone, OSError):
        for message in server.messages(lambda: False):
            server.send(message, text=False)


@pytest.fixture
def caller(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """The caller's side of a WebSocket that echoes, for as many seconds."""
    caller, served = socket.socketpair()
    caller.settimeout(20)
    thread = threading.Thread(target=echo, args=(served, getattr(request, "param", 10.0)))
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


OWN = "http://box.example:8080"
LISTED = ("https://app.example.com", "http://localhost:3000")


OF_THE_BOX = (None, OWN, "HTTP://Box.Example:8080", *LISTED, "https://APP.example.com:443")
OF_ANOTHER = {
    "http://box.example": "http://BOX.example:80",
    "https://box.example:443": "https://box.example",
    "http://[::1]:8080": "http://[::1]:8080",
}


@pytest.mark.parametrize(("origin", "own"), [*((origin, OWN) for origin in OF_THE_BOX), *OF_ANOTHER.items()])
def test_pages_of_the_box_and_of_listed_origins_may_open_one(origin: str | None, own: str) -> None:
    check_origin(origin, own, LISTED)


OTHERS = """
http://evil.example null NULL * file:// http:// about:blank box.example:8080 http://box.example:8081
http://box.example https://box.example:8080 ws://box.example:8080 http://box.example:8080.evil.example
http://evil.box.example:8080 http://xbox.example:8080 http://box.example:8080@evil.example
http://evil.example/http://box.example:8080 http://box.example:8080/ http://box.example:808080
http://evil.example,http://box.example:8080 http://box.example:8080,http://box.example:8080
http://box.example.:8080 http://[::1]:8080 https://app.example.com.evil.example http://app.example.com
https://app.example.com:8443 http://localhost:3001 https://localhost:3000 http://localhost
http://127.0.0.1:3000
"""


NAMELESS = ("http://", "http://a b", "http://null")


@pytest.mark.parametrize(
    ("origin", "own"),
    [
        *((origin, OWN) for origin in OTHERS.split()),
        *((origin, OWN) for origin in ("", f"{OWN} http://evil.example", f"{OWN}\n", f"\n{OWN}")),
        *((origin, own) for origin in ("http://evil.example", "null") for own in NAMELESS),
    ],
)
def test_pages_of_any_other_origin_may_not(origin: str, own: str) -> None:
    with pytest.raises(Forbidden):
        check_origin(origin, own, LISTED)


@pytest.mark.parametrize("caller", [0.1], indirect=True)
@pytest.mark.parametrize("sent", [frame(BINARY, b"x"), frame(PING), frame(BINARY, b"x", fin=False)])
def test_a_caller_who_sends_on_without_an_end_is_closed_when_the_time_is_over(
    caller: socket.socket, sent: bytes
) -> None:
    """The fixture waits for the end of the server."""
    with suppress(OSError):
        for _ in range(MAX_FRAMES):
            caller.sendall(sent)
            if select.select([caller], [], [], 0.001)[0] and not caller.recv(2**16):
                return
        pytest.fail("the server goes on")


def test_a_message_does_not_get_more_time_than_its_connection_has() -> None:
    now = time.monotonic()
    deadline = Invocation(now + 60)
    deadline.limit(now + 5)
    deadline.extend(420)
    assert deadline.at == now + 5
    longer = Invocation(now + 1)
    longer.limit(now + 100)
    longer.extend(50)
    assert longer.at == now + 51
