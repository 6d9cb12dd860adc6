"""A WebSocket reads frames in whatever pieces they arrive, and closes with the code of what its caller does.

wsproto has the protocol's rules, and tests for each of them; here is a case for each way that our class takes.
tests/integration/streaming/test_conversations.py sends a flood after a broken frame through the box.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
import websocket
from websocket import ABNF
from wsproto.connection import Connection
from wsproto.events import Event

from sm.errors import CallerGone, Forbidden
from sm.invocation import Invocation
from sm.router.websocket import MAX_EMPTY, MAX_SMALL_FRAGMENTS, WebSocket, check_origin

MAX_BYTES = 2**19
#: Frames of a caller who sends on: many more than fit into the time of the test.
MAX_FRAMES = 10**5
CONTINUATION, TEXT, BINARY = ABNF.OPCODE_CONT, ABNF.OPCODE_TEXT, ABNF.OPCODE_BINARY
CLOSE, PING, PONG = ABNF.OPCODE_CLOSE, ABNF.OPCODE_PING, ABNF.OPCODE_PONG
NORMAL, BROKEN, NO_CODE, NO_TEXT, TOO_MANY, TOO_BIG = 1000, 1002, 1005, 1007, 1008, 1009


class Case(NamedTuple):
    """Frames that a caller sends, what it gets before it sends the last one, and the code of the close."""

    sent: Sequence[bytes]
    replies: Sequence[tuple[int, bytes]] = ()
    close: int = BROKEN


def frame(opcode: int, payload: bytes = b"", *, fin: int = 1, rsv: int = 0, mask: int = 1) -> bytes:
    return ABNF(fin, rsv, 0, 0, opcode, mask, payload).format()


def end(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason)


HELLO, HEL, LO = frame(TEXT, b"Hello"), frame(TEXT, b"Hel", fin=0), frame(CONTINUATION, b"lo")
ANSWER, BYTE, END = (BINARY, b"Hello"), (BINARY, b"\xfe"), end(NORMAL)
KAPPA = frame(TEXT, b"\xce", fin=0), frame(CONTINUATION, b"\xba")
HALF = b"*" * (MAX_BYTES // 2)
LARGE, MORE = (frame(BINARY, HALF, fin=0), frame(CONTINUATION, HALF)), frame(CONTINUATION, HALF + b"*", fin=0)
CASES = {
    "a text": Case([HELLO, END], [ANSWER], NORMAL),
    "bytes, and an empty text": Case(
        [frame(BINARY, b"\xfe"), frame(TEXT), END], [BYTE, (BINARY, b"")], NORMAL
    ),
    "a ping": Case([frame(PING, b"\0\xff"), END], [(PONG, b"\0\xff")], NORMAL),
    "a pong that nobody asked for": Case([frame(PONG), END], close=NORMAL),
    "a ping between fragments": Case([HEL, frame(PING), LO, END], [(PONG, b""), ANSWER], NORMAL),
    "a character in two fragments": Case([*KAPPA, END], [(BINARY, "κ".encode())], NORMAL),
    "large fragments": Case([*LARGE, END], [(BINARY, b"*" * MAX_BYTES)], NORMAL),
    "too large, whatever follows": Case([LARGE[0], MORE + frame(PING) + LO], close=TOO_BIG),
    "a close without a code": Case([frame(CLOSE)], close=NO_CODE),
    "a close with a reason": Case([end(4999, b"enough")], close=4999),
    "a close within a message": Case([HEL, END], close=NORMAL),
    "a message after the close": Case([END, HELLO], close=NORMAL),
    "a close with a code that nobody may send": Case([end(1006)]),
    "a close with half a code": Case([frame(CLOSE, b"a")]),
    "a close with a reason that is not UTF-8": Case([end(NORMAL, b"\xff")], close=NO_TEXT),
    "a text that is not UTF-8": Case([frame(TEXT, b"\xff"), HELLO], close=NO_TEXT),
    "a text that cannot become UTF-8": Case([frame(TEXT, b"a\xff", fin=0)], close=NO_TEXT),
    "a reserved bit": Case([HELLO, frame(TEXT, rsv=1) + HELLO], [ANSWER]),
    "an unknown opcode": Case([HELLO, b"\x83\x80\0\0\0\0"], [ANSWER]),
    "a frame without a mask": Case([HELLO, frame(PING, mask=0)], [ANSWER]),
    "a thousand small fragments": Case(
        [frame(BINARY, fin=0), *[frame(CONTINUATION, b"a", fin=0)] * (MAX_SMALL_FRAGMENTS + 1)],
        close=TOO_MANY,
    ),
    "a thousand pings": Case([frame(PING)] * (MAX_EMPTY + 1), [(PONG, b"")] * MAX_EMPTY, TOO_MANY),
    "a thousand pongs": Case([frame(PONG)] * (MAX_EMPTY + 1), close=TOO_MANY),
    "a thousand empty messages": Case(
        [frame(TEXT)] * (MAX_EMPTY + 1), [(BINARY, b"")] * MAX_EMPTY, close=TOO_MANY
    ),
    "a ping in fragments": Case([frame(PING, fin=0), LO]),
    "a ping of 126 bytes": Case([frame(PING, bytes(126))]),
    "a fragment of nothing": Case([HELLO, LO], [ANSWER]),
    "a message within a message": Case([HEL, HELLO]),
    "a length in more bytes than it needs": Case([b"\x81\xfe\0\1\0\0\0\0x"]),
}


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
    thread = threading.Thread(target=echo, args=(served, getattr(request, "param", 60.0)))
    thread.start()
    with caller:
        yield caller
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("name", CASES)
def test_each_frame_gets_its_reply_or_ends_the_connection(caller: socket.socket, name: str) -> None:
    """Frames come byte by byte, large ones whole."""
    case, reader = CASES[name], websocket.WebSocket(fire_cont_frame=True, skip_utf8_validation=True)
    reader.sock, reader.connected = caller, True

    def send(*frames: bytes) -> None:
        content = b"".join(frames)
        size = 1 if len(content) < 1000 else len(content)
        with suppress(OSError):  # the server may have closed the connection already
            for start in range(0, len(content), size):
                caller.sendall(content[start : start + size])

    def receive() -> tuple[int, bytes]:
        received: Any = reader.recv_frame()  # type: ignore[no-untyped-call]
        return received.opcode, received.data

    send(*case.sent[:-1])
    assert [receive() for _ in case.replies] == [*case.replies]
    send(case.sent[-1])
    opcode, payload = receive()
    assert (opcode, int.from_bytes(payload[:2], "big") or NO_CODE) == (CLOSE, case.close)


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
@pytest.mark.parametrize(
    "sent",
    [frame(BINARY, b"x"), frame(PING), frame(BINARY, b"x", fin=0)],
    ids=["message", "ping", "fragment"],
)
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


@pytest.mark.parametrize(
    "flood",
    [frame(PING), frame(PONG), frame(TEXT), frame(BINARY, b"x", fin=0) + frame(CONTINUATION, fin=0) * 20_000],
    ids=["pings", "pongs", "empty messages", "fragments"],
)
def test_a_flood_of_tiny_frames_is_not_read_to_its_end(flood: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before the connection is closed nor after."""
    read: list[Event] = []
    events = Connection.events

    def note(protocol: Connection) -> Iterator[Event]:
        for event in events(protocol):
            read.append(event)
            yield event

    monkeypatch.setattr(Connection, "events", note)
    caller, served = socket.socketpair()
    caller.settimeout(20)
    with caller:
        thread = threading.Thread(target=echo, args=(served, 60.0))
        thread.start()
        with suppress(OSError):
            for _ in range(10):
                caller.sendall(flood if len(flood) > 1000 else flood * 4000)
            caller.shutdown(socket.SHUT_WR)
        while caller.recv(2**16):
            pass
        thread.join(20)
    assert len(read) <= 2 * MAX_EMPTY + 100


@pytest.mark.parametrize("sent", [b"", HEL], ids=["nothing", "half a message"])
def test_a_caller_who_hangs_up_without_a_close_frees_the_thread_at_once(
    caller: socket.socket, sent: bytes
) -> None:
    """Long before the connection's time is over."""
    caller.sendall(sent)
    caller.shutdown(socket.SHUT_WR)
    assert caller.recv(1) == b""


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
