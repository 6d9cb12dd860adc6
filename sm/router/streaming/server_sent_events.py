"""Encode the parts of a client's answer as server-sent events or as plain bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pybase64

from sm.client.base import Client
from sm.client.results import Encoded, Picture
from sm.errors import ClientFailed, TriremeError
from sm.router.answer import Answer, dumps, write_error
from sm.router.invocation import JSON, Invocation
from sm.router.streaming.stream import finish

EVENTS = "text/event-stream"
#: To the letter, as the platform's own container says it.
EVENTS_UTF8 = "text/event-stream; charset=utf-8"
BYTES = "application/octet-stream"


def wants_stream(call: Invocation, client: Client, in_parts: bool) -> bool:
    """Whether to answer in parts: any client's result as events, else those of a client that has its own."""
    return call.accept == EVENTS or (in_parts and client.streams())


def write(call: Invocation, parts: Iterator[object]) -> Answer:
    """The parts of a client's answer in the form that the caller accepts."""
    if call.accept == EVENTS:
        return Answer(events(parts, call.model), EVENTS_UTF8)
    return Answer(plain(parts), BYTES if call.accept == JSON else call.accept)


def events(parts: Iterator[object], model: str) -> Iterator[bytes]:
    """An event for each part. An object is sent as it is, anything else as ``{"modelname", "result"}``."""
    return _each(parts, lambda part: b"data: " + _event(part, model) + b"\n\n")


def plain(parts: Iterator[object]) -> Iterator[bytes]:
    """The parts one behind the other: bytes as they are, texts in UTF-8, anything else as a line of JSON."""
    return _each(parts, _bytes)


def with_final_error(chunks: Iterator[bytes], request_id: str) -> Iterator[bytes]:
    """The events in ``chunks``; an error on the way is the last one, ``event: error``."""
    try:
        yield from chunks
    except TriremeError as error:
        yield b"event: error\ndata: " + write_error(error, request_id).read() + b"\n\n"


def split_events(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The events in ``chunks`` one by one, wherever the chunks were cut."""
    rest = b""
    try:
        for chunk in chunks:
            *events_here, rest = (rest + chunk).split(b"\n\n")
            for event in events_here:
                yield event + b"\n\n"
        if rest:
            yield rest
    finally:
        finish(chunks)


def _each(parts: Iterator[object], encode: Callable[[object], bytes]) -> Iterator[bytes]:
    try:
        for part in parts:
            try:
                chunk = encode(part)
            except (TypeError, ValueError) as error:
                raise ClientFailed(f"a part of the answer cannot be sent: {error}") from error
            yield chunk
    finally:
        finish(parts)


def _event(part: object, model: str) -> bytes:
    if isinstance(part, dict):
        return dumps(part)
    if isinstance(part, Encoded):
        # An event may have several lines.
        return part.body.replace(b"\n", b"\ndata: ")
    if isinstance(part, bytes):
        part = pybase64.b64encode(part).decode()
    return dumps({"modelname": model, "result": part.as_json() if isinstance(part, Picture) else part})


def _bytes(part: object) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, Encoded):
        return part.body
    if isinstance(part, Picture):
        return part.png()
    return part if isinstance(part, bytes) else dumps(part) + b"\n"
