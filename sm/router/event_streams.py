"""Encode the parts of a streamed answer, as server-sent events or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pybase64

from sm.client import results
from sm.client.results import Encoded, Picture
from sm.errors import TriremeError
from sm.http.messages import EVENTS, JSON, OCTET_STREAM, Answer, write_error
from sm.router.answers import dumps
from sm.router.back_pressure import finishing
from sm.router.request_types import DispatchRequest

#: Exactly as AWS's own Triton container writes it.
EVENTS_UTF8 = "text/event-stream; charset=utf-8"


def write_stream(request: DispatchRequest, parts: Iterator[object]) -> Answer:
    """Encode the parts of a client's answer in the form that the caller accepts."""
    # The dictionary itself: the client may add headers until its first part.
    headers = request.answer_headers
    if request.accept == EVENTS:
        return Answer(events(parts, request.model), EVENTS_UTF8, headers=headers)
    return Answer(
        raw_parts(parts), OCTET_STREAM if request.accept == JSON else request.accept, headers=headers
    )


def events(parts: Iterator[object], model: str) -> Iterator[bytes]:
    """Encode each part as an event: an object unchanged, anything else as ``{"modelname", "result"}``."""
    return _encode_each(parts, lambda part: b"data: " + _event(part, model) + b"\n\n")


def raw_parts(parts: Iterator[object]) -> Iterator[bytes]:
    """Encode each part by itself: bytes unchanged, texts in UTF-8, anything else as a line of JSON."""
    return _encode_each(parts, _to_bytes)


def with_final_error(chunks: Iterator[bytes], request_id: str) -> Iterator[bytes]:
    """Yield ``chunks``; an error becomes a last event, ``event: error``."""
    try:
        yield from chunks
    except TriremeError as error:
        yield b"event: error\ndata: " + write_error(error, request_id).read() + b"\n\n"


def split_events(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the events in ``chunks`` one by one, wherever the chunks were cut."""
    partial = b""
    with finishing(chunks):
        for chunk in chunks:
            *complete, partial = (partial + chunk).split(b"\n\n")
            for event in complete:
                yield event + b"\n\n"
        if partial:
            yield partial


def _encode_each(parts: Iterator[object], encode: Callable[[object], bytes]) -> Iterator[bytes]:
    with finishing(parts):
        for part in parts:
            try:
                chunk = encode(part)
            except (TypeError, ValueError) as error:
                raise results.error("a part of the answer cannot be sent", "part", part, dumps) from error
            yield chunk


def _event(part: object, model: str) -> bytes:
    if isinstance(part, dict):
        return dumps(part)
    if isinstance(part, Encoded):
        # An event may have several lines.
        return part.body.replace(b"\n", b"\ndata: ")
    if isinstance(part, bytes):
        part = pybase64.b64encode(part).decode()
    return dumps({"modelname": model, "result": part})


def _to_bytes(part: object) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, Encoded):
        return part.body
    if isinstance(part, Picture):
        return part.png()
    return part if isinstance(part, bytes) else dumps(part) + b"\n"
