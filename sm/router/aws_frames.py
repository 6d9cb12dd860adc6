"""Encode frames of ``application/vnd.amazon.eventstream``.

A frame is: its length and that of its headers (4 bytes each), a CRC-32 of these 8 bytes, the headers, the
payload, a CRC-32 of everything before. A header is: the length of its name (1 byte), the name, its type (7, a
string), the length of its value (2 bytes), the value. All numbers are big-endian.
https://docs.aws.amazon.com/transcribe/latest/dg/event-stream.html
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping

from sm.errors import DeadlinePassed, TriremeError
from sm.http.messages import JSON, OCTET_STREAM
from sm.router.answers import dumps
from sm.router.back_pressure import finishing

EVENT_STREAM = "application/vnd.amazon.eventstream"
#: Bytes of a payload; boto3 refuses more than 24 MiB.
MAX_PAYLOAD_BYTES = 2**20
#: The type of a header whose value is a string.
STRING_TYPE = 7


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Encode one message."""
    encoded_headers = b"".join(map(_header, headers, headers.values()))
    # 16: 12 bytes before the headers, and 4 after the payload.
    prelude = struct.pack("!II", 16 + len(encoded_headers) + len(payload), len(encoded_headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + encoded_headers + payload
    return message + struct.pack("!I", zlib.crc32(message))


def frames(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Encode every chunk as a ``PayloadPart``; an error ends the stream as a ``ModelStreamError``."""
    with finishing(chunks):
        try:
            for chunk in chunks:
                for start in range(0, len(chunk), MAX_PAYLOAD_BYTES):
                    yield payload_part(chunk[start : start + MAX_PAYLOAD_BYTES])
        except TriremeError as error:
            yield stream_failure(error)


def payload_part(payload: bytes) -> bytes:
    """Encode some bytes of the answer."""
    headers = {":message-type": "event", ":event-type": "PayloadPart", ":content-type": OCTET_STREAM}
    return frame(headers, payload)


def stream_failure(error: TriremeError) -> bytes:
    """Encode an error as the last message of a stream. SageMaker knows two error codes."""
    timed_out = isinstance(error, DeadlinePassed)
    body = {
        "Message": error.sentence,
        "ErrorCode": "ModelInvocationTimeExceeded" if timed_out else "StreamBroken",
    }
    headers = {":message-type": "exception", ":exception-type": "ModelStreamError", ":content-type": JSON}
    return frame(headers, dumps(body))


def _header(name: str, value: str) -> bytes:
    encoded_name, encoded_value = name.encode(), value.encode()
    type_and_size = struct.pack("!BH", STRING_TYPE, len(encoded_value))
    return b"".join((bytes((len(encoded_name),)), encoded_name, type_and_size, encoded_value))
