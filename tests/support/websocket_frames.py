"""Frames of a WebSocket, byte by byte, and what a server must do with them.

The cases are those of the Autobahn test suite's fuzzing client, without compression, which the box does not
offer. The suite itself needs Python 2.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
NORMAL, PROTOCOL_ERROR, NO_STATUS, INVALID_TEXT, TOO_BIG = 1000, 1002, 1005, 1007, 1009
#: A reply to a frame: its opcode and payload.
Frame = tuple[int, bytes]


class Case(NamedTuple):
    """Frames that a caller sends, and the frames that it gets back."""

    name: str
    sent: Sequence[bytes]
    #: Pongs and echoed messages, in order. All are due before the last frame is sent.
    replies: Sequence[Frame] = ()
    #: The code of the server's close frame; ``NO_STATUS`` for one without a code.
    close: int = PROTOCOL_ERROR


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    masked: bool = True,
    size_of: int = 0,
) -> bytes:
    """Encode a caller's frame; ``size_of``: bytes of the length field, if not the fewest."""
    size = len(payload)
    size_of = size_of or (0 if size < 126 else 2 if size < 2**16 else 8)
    short = {0: size, 2: 126, 8: 127}[size_of]
    head = bytes([fin << 7 | rsv << 4 | opcode, masked << 7 | short])
    if size_of:
        head += struct.pack("!H" if size_of == 2 else "!Q", size)
    if not masked:
        return head + payload
    # The mask is the same for each byte, so that a table can apply it.
    return head + b"\x5a" * 4 + payload.translate(bytes(byte ^ 0x5A for byte in range(256)))


def fragments(opcode: int, *parts: bytes) -> list[bytes]:
    """Encode one message in several frames."""
    last = len(parts) - 1
    return [frame(CONTINUATION if at else opcode, part, fin=at == last) for at, part in enumerate(parts)]


def read_frames(connection: socket.socket) -> Iterator[Frame]:
    """Yield the server's frames up to its close frame, or until it closes the connection."""
    with connection.makefile("rb") as stream:
        while len(head := stream.read(2)) == 2:
            size = head[1] & 127
            if size > 125:
                size = int.from_bytes(stream.read(2 if size == 126 else 8), "big")
            opcode = head[0] & 15
            yield opcode, stream.read(size)
            if opcode == CLOSE:
                return


def play(connection: socket.socket, case: Case, piece: int = 2**20) -> list[Frame]:
    """Send a case's frames, ``piece`` bytes at a time; return all of the server's frames."""
    received = read_frames(connection)
    *first, last = case.sent
    _send(connection, b"".join(first), piece)
    replies = [next(received, (-1, b"")) for _ in case.replies]
    _send(connection, last, piece)
    return [*replies, *received]


def _send(connection: socket.socket, content: bytes, piece: int) -> None:
    with contextlib.suppress(OSError):  # the server may have closed the connection already
        for start in range(0, len(content), piece):
            connection.sendall(content[start : start + piece])


def close_code(payload: bytes) -> int:
    """Return the code of a close frame."""
    return int.from_bytes(payload[:2], "big") if payload else NO_STATUS


HELLO = (TEXT, b"Hello")
HELLO_FRAME = frame(TEXT, b"Hello")
END = frame(CLOSE, struct.pack("!H", NORMAL))
#: Codes that a caller may close with, and those that it may not.
VALID_CODES = (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999)
INVALID_CODES = (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)
KOSME = "κόσμε".encode()
VALID_TEXTS = tuple(
    text.encode()
    for text in ("κόσμε", *"\x00\x7f\x80\u07ff\u0800\ud7ff\ue000\ufffd\ufffe\uffff\U00010000\U0010ffff")
)
#: In hexadecimal: a surrogate within a text, texts that are cut short, continuation bytes alone, first bytes without
#: the next ones, bytes that no text has, characters that are longer than needed, one above the last, and surrogates.
INVALID_IN_HEX = (
    "cebae1bdb9cf83cebcceb5eda080656469746564 ce e1bd 80 bf80 c020c120 e020ef20 f020f720 fe ff c0af "
    "e080af f08080af f8808080af fc80808080af e09fbf f08fbfbf f4908080 eda080 edbfbf eda080edb080"
)
INVALID_TEXTS = tuple(bytes.fromhex(text) for text in INVALID_IN_HEX.split())


def _cases() -> Iterator[Case]:
    def answered(name: str, *sent: bytes, replies: Sequence[Frame] = (), close: int = NORMAL) -> Case:
        return Case(name, [*sent, END], replies, close)

    for opcode, byte in ((TEXT, b"*"), (BINARY, b"\xfe")):
        for size in (0, 125, 126, 127, 128, 65535, 65536):
            message = opcode, byte * size
            yield answered(f"1 message {opcode} of {size}", frame(*message), replies=[message])
    for payload in (b"", b"Hello", b"\x00\xff\xfe\xfd", b"\xfe" * 125):
        yield answered(f"2 ping of {len(payload)}", frame(PING, payload), replies=[(PONG, payload)])
        yield answered(f"2 pong of {len(payload)}", frame(PONG, payload))
    pings = [b"payload-%d" % number for number in range(10)]
    pongs = [(PONG, ping) for ping in pings]
    yield answered("2 ten pings", *(frame(PING, ping) for ping in pings), replies=pongs)
    for opcode in (PING, PONG):
        yield Case(f"2 control frame {opcode} too long", [frame(opcode, b"\xfe" * 126, size_of=2)])
    for rsv, opcode in ((1, TEXT), (2, TEXT), (3, TEXT), (4, TEXT), (5, BINARY), (6, PING), (7, CLOSE)):
        yield Case(f"3 rsv {rsv}", [frame(opcode, b"\x03\xe8", rsv=rsv), frame(PING)])
    yield Case("3 rsv after a message", [HELLO_FRAME, frame(TEXT, b"Hello", rsv=4)], [HELLO])
    for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15):
        yield Case(f"4 opcode {opcode}", [frame(opcode), frame(PING)])
        yield Case(f"4 opcode {opcode} after a message", [HELLO_FRAME, frame(opcode, b"x")], [HELLO])
    yield Case("4 unmasked", [frame(TEXT, b"Hello", masked=False)])
    yield Case("4 unmasked after a message", [HELLO_FRAME, frame(PING, masked=False)], [HELLO])
    for opcode in (PING, PONG, CLOSE):
        yield Case(f"5 control frame {opcode} in parts", fragments(opcode, b"fragment1", b"fragment2"))
    start, end = fragments(TEXT, b"Hel", b"lo")
    yield answered("5 two fragments", start, end, replies=[HELLO])
    yield answered("5 ping between fragments", start, frame(PING), end, replies=[(PONG, b""), HELLO])
    for fin in (True, False):
        alone = frame(CONTINUATION, b"x", fin=fin)
        yield Case(f"5 continuation of nothing {fin}", [alone, HELLO_FRAME])
        yield Case(f"5 continuation after an end {fin}", [start, end, alone], [HELLO])
    for opcode in (TEXT, BINARY):
        yield Case(f"5 message {opcode} within a message", [start, frame(opcode, b"b")])
    one, two, three, four, five = fragments(TEXT, b"1", b"2", b"3", b"4", b"5")
    sent = one, two, frame(PING, b"pongme"), three, four, frame(PING, b"again"), five
    replies = [(PONG, b"pongme"), (PONG, b"again"), (TEXT, b"12345")]
    yield answered("5 five fragments and two pings", *sent, replies=replies)
    yield answered("6 empty fragments", *fragments(TEXT, b"", b"", b""), replies=[(TEXT, b"")])
    yield answered("6 one fragment not empty", *fragments(TEXT, b"", b"Hello", b""), replies=[HELLO])
    single = [KOSME[at : at + 1] for at in range(len(KOSME))]
    yield answered("6 characters cut by fragments", *fragments(TEXT, *single), replies=[(TEXT, KOSME)])
    for text in VALID_TEXTS:
        yield answered(f"6 valid text {text.hex()}", frame(TEXT, text), replies=[(TEXT, text)])
    for text in INVALID_TEXTS:
        hexed = text.hex()
        yield Case(f"6 invalid text {hexed}", [frame(TEXT, text)], close=INVALID_TEXT)
        yield Case(f"6 unended {hexed}", [frame(TEXT, text + b"\xff", fin=False)], close=INVALID_TEXT)
        yield answered(f"6 binary message {hexed}", frame(BINARY, text), replies=[(BINARY, text)])
    for name, second in {"close": END, "ping": frame(PING), "message": HELLO_FRAME}.items():
        yield Case(f"7 {name} after the close", [END, second], close=NORMAL)
    yield answered("7 close within a message", frame(TEXT, b"Hel", fin=False))
    reasons = {b"": NO_STATUS, b"a": PROTOCOL_ERROR, b"\x03\xe8Hello World!": NORMAL}
    reasons |= {b"\x03\xe8" + b"*" * 123: NORMAL, b"\x03\xe8" + INVALID_TEXTS[0]: INVALID_TEXT}
    reasons |= {b"\x03\xe8" + b"*" * 124: PROTOCOL_ERROR}
    reasons |= {struct.pack("!H", code): code for code in VALID_CODES}
    reasons |= {struct.pack("!H", code): PROTOCOL_ERROR for code in INVALID_CODES}
    for payload, code in reasons.items():
        yield Case(
            f"7 close with {payload[:20]!r}, {len(payload)} bytes", [frame(CLOSE, payload)], close=code
        )
    for opcode in (TEXT, BINARY):
        parts = [b"*" * 1300] * 200
        yield answered(f"9 message {opcode}", *fragments(opcode, *parts), replies=[(opcode, b"".join(parts))])
    # RFC 6455, 5.2: the fewest bytes for a length, and no sign bit.
    yield Case("rfc length of 2 bytes", [frame(TEXT, b"Hello", size_of=2)])
    yield Case("rfc length of 8 bytes", [frame(TEXT, b"*" * 200, size_of=8)])
    yield Case("rfc length over 2^63", [b"\x82\xff" + b"\xff" * 8])


CASES = tuple(_cases())
