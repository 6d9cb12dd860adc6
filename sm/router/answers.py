"""Encode answers: results and errors as JSON, lists, streams as server-sent events or as AWS's frames.

A frame of ``application/vnd.amazon.eventstream`` is: its length and that of its headers (4 bytes each), a
CRC-32 of these 8 bytes, the headers, the payload, a CRC-32 of everything before. A header is: the length of
its name (1 byte), the name, its type (7, a string), the length of its value (2 bytes), the value. All numbers
are big-endian. https://docs.aws.amazon.com/transcribe/latest/dg/event-stream.html
"""

from __future__ import annotations

import contextlib
import contextvars
import io
import struct
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import numpy as np
import orjson
import pybase64

from sm import deadline
from sm.client import results
from sm.client.csv_rows import encode_csv
from sm.client.payloads import write_npy
from sm.client.results import Boxes, Encoded, Picture, encodable
from sm.errors import DeadlinePassed, NotAcceptable, StreamStalled, TriremeError
from sm.http.media_types import acceptable, negotiate
from sm.http.messages import (
    CSV,
    EVENTS,
    JSON,
    JSON_LINES,
    NPY,
    OCTET_STREAM,
    PNG,
    Answer,
    strict_json,
    write_error,
)
from sm.router.classify import OFFERS, DispatchRequest
from sm.triton.read_ahead import PATIENCE

#: What a list may be sent as, the best first.
LIST_OFFERS = (JSON, JSON_LINES, CSV)
#: Dataclasses are passed to :func:`encodable`, because a picture is one.
OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS


@dataclass(slots=True)
class EncodedRecord:
    """A record's result as encoded JSON. ``failure`` is set for a record that failed."""

    body: bytes
    failure: TriremeError | None = None


def write(request: DispatchRequest, result: object) -> Answer:
    """Encode the result of a single record in the type that the caller likes best of those that it can have.

    Raises:
        NotAcceptable: It can have none that the caller accepts.
        TriremeError: The result is one.
    """
    if isinstance(result, TriremeError):
        raise result
    if isinstance(result, Encoded):
        is_json = result.content_type.startswith((JSON, JSON_LINES))
        body = strict_json(result.body) if is_json else result.body
        return Answer(body, result.content_type, headers=request.answer_headers)
    if request.accept != JSON:
        offers = tuple(dict.fromkeys((request.accept, *OFFERS)))
        for kind in acceptable(request.accept_header, offers):
            if kind == JSON:
                break
            encoded = _encode_as(kind, request, result)
            if encoded is not None:
                return Answer(encoded, kind, headers=request.answer_headers)
        else:
            raise NotAcceptable(
                f"the result of {request.model!r} cannot be sent as {request.accept_header[:100]!r}; "
                f"{JSON} can"
            )
    try:
        body = orjson.dumps({"modelname": request.model, "result": result}, encodable, OPTIONS)
    except (TypeError, ValueError) as error:
        raise _unencodable(request.model, result) from error
    return Answer(body, headers=request.answer_headers)


def write_pipeline(request: DispatchRequest, results: Sequence[object]) -> Answer:
    """Encode the answer to a request in Hugging Face's form. Raises the first failure of a record."""
    call = request.pipeline
    assert call is not None
    for result in results:
        if isinstance(result, TriremeError):
            raise result
    try:
        answer = call.pipeline.write(call.inputs, call.parameters, results, request.client)
        return Answer(dumps(answer), headers=request.answer_headers)
    except (TypeError, ValueError) as error:
        raise _unencodable(request.model, results) from error


def record_encoder(request: DispatchRequest) -> Callable[[object], EncodedRecord]:
    """Choose the type of the answer to a list, and return what encodes a record for it.

    Raises :class:`NotAcceptable` if the caller accepts none.
    """
    # Found objects have no line of CSV, so JSON is the best of a caller that takes both.
    has_lines = request.client is None or not isinstance(request.client.result, Boxes)
    kinds = LIST_OFFERS if has_lines else LIST_OFFERS[:-1]
    offers = tuple(kind for kind in dict.fromkeys((request.accept, *kinds)) if kind in kinds)
    request.accept = negotiate(request.accept_header, offers)
    return partial(encode_row, request) if request.accept == CSV else partial(encode_record, request.model)


def write_list(request: DispatchRequest, records: Iterable[EncodedRecord]) -> Answer:
    """Join encoded records to a JSON list, to JSON lines or CSV. Raises the first failure if none succeeded.

    CSV has no place for an error, so that every failure is raised.
    """
    if request.accept in (JSON_LINES, CSV):
        body = join_records(records, b"\n", has_errors=request.accept == JSON_LINES)
        return Answer(body, request.accept, headers=request.answer_headers)
    start = b'{"modelname":' + dumps(request.model) + b',"result":['
    return Answer(join_records(records, b",", start, b"]}"), headers=request.answer_headers)


def join_records(
    records: Iterable[EncodedRecord],
    separator: bytes,
    start: bytes = b"",
    end: bytes = b"",
    has_errors: bool = True,
) -> bytes:
    """Join the records' bytes, and note a failure that is not the caller's fault.

    Raises the first failure if no record succeeded, or if the form has no errors in it.
    """
    body, first_failure, succeeded, running = io.BytesIO(), None, False, deadline.current()
    body.write(start)
    for number, record in enumerate(records):
        if number:
            body.write(separator)
        body.write(record.body)
        if record.failure is None:
            succeeded = True
            continue
        if not has_errors:
            raise record.failure
        first_failure = first_failure or record.failure
        if running is not None and record.failure.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            running.failed_status = record.failure.status
    if first_failure is not None and not succeeded:
        raise first_failure
    body.write(end)
    return body.getvalue()


def encode_record(model: str, result: object) -> EncodedRecord:
    """Encode a result or a :class:`TriremeError` as an entry of a list."""
    if isinstance(result, TriremeError):
        return encode_failure(result)
    try:
        return EncodedRecord(dumps(result))
    except (TypeError, ValueError):
        return encode_failure(_unencodable(model, result))


def encode_row(request: DispatchRequest, result: object) -> EncodedRecord:
    """Encode a result or a :class:`TriremeError` as CSV."""
    if isinstance(result, TriremeError):
        return encode_failure(result)
    row = _encode_as(CSV, request, result)
    if row is None:
        return encode_failure(
            NotAcceptable(
                f"the result of {request.model!r} has no form of one line of CSV; {JSON} has it all"
            )
        )
    return EncodedRecord(row)


def encode_failure(error: TriremeError) -> EncodedRecord:
    """Encode the entry of a record or a line that failed."""
    # Release the frames in its traceback: hundreds of failures may wait for their turn.
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return EncodedRecord(dumps(error.body()), error)


def _unencodable(model: str, result: object) -> TriremeError:
    return results.error(f"the result of {model!r} cannot be sent", "result", result, dumps)


def dumps(value: object) -> bytes:
    """Encode JSON, including NumPy values. NaN and infinity become null, as JSON has neither."""
    return orjson.dumps(value, default=encodable, option=OPTIONS)


def _encode_as(kind: str, request: DispatchRequest, result: object) -> bytes | None:
    """Encode a result as a type other than JSON; None if it cannot be."""
    if kind == JSON_LINES:
        record = encode_record(request.model, result)
        if record.failure is not None:
            raise record.failure
        return record.body
    if isinstance(result, Picture):
        return result.png() if kind == PNG else None
    if kind == CSV:
        return encode_csv(result, request.client.result if request.client else None)
    if kind != NPY:
        return None
    try:
        array = np.asarray(result)
    except ValueError:
        return None
    if array.dtype.kind not in "biuf":
        return None
    return write_npy(array)


#: Bytes a second that a caller must take while it holds the stream up, after the patience: 128 kbit/s.
MIN_RATE = 2**14


class Stream:
    """The chunks of one answer. The constructor produces the first one; iteration produces the others.

    So an error before the first chunk is raised by the constructor, and becomes an ordinary error answer. All
    chunks are produced in the constructor's context, because it holds the invocation's deadline.

    Args:
        chunks: Produces the answer.
        resources: Entered before the first chunk and left when the stream ends, however it ends.
        sent: Called with each chunk when it was sent.
    """

    def __init__(
        self,
        chunks: Iterator[bytes],
        resources: AbstractContextManager[object],
        sent: Callable[[bytes], object],
    ) -> None:
        self._context = contextvars.copy_context()
        self._chunks = _within(chunks, resources, sent)
        self._first: bytes | None = self._context.run(next, self._chunks, None)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk, self._first = self._first, None
        return self._context.run(next, self._chunks) if chunk is None else chunk

    def close(self) -> None:
        """Stop producing chunks: the caller has all of them, or has disconnected."""
        self._first = None
        with contextlib.suppress(StreamStalled):  # nobody is left to read it
            self._context.run(self._chunks.close)


def finish(chunks: object) -> None:
    """Close a generator or a :class:`Stream` that was not read to its end."""
    close = getattr(chunks, "close", None)
    if close:
        close()


def _within(
    chunks: Iterator[bytes], resources: AbstractContextManager[object], sent: Callable[[bytes], object]
) -> Generator[bytes, None, None]:
    taken, held_up = 0, 0.0
    with resources:
        try:
            for chunk in chunks:
                handed = time.monotonic()
                try:
                    yield chunk
                except GeneratorExit:
                    # nginx may have closed the connection a moment before, for the same reason.
                    if time.monotonic() - handed < PATIENCE.seconds / 2:
                        raise
                    raise StreamStalled("the caller took nothing, so the stream was ended") from None
                sent(chunk)
                taken += len(chunk)
                held_up += time.monotonic() - handed
                if held_up > PATIENCE.seconds + taken / MIN_RATE:
                    raise StreamStalled("the caller takes the stream too slowly, so it was ended")
        finally:
            finish(chunks)


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
    try:
        for chunk in chunks:
            *complete, partial = (partial + chunk).split(b"\n\n")
            for event in complete:
                yield event + b"\n\n"
        if partial:
            yield partial
    finally:
        finish(chunks)


def _encode_each(parts: Iterator[object], encode: Callable[[object], bytes]) -> Iterator[bytes]:
    try:
        for part in parts:
            try:
                chunk = encode(part)
            except (TypeError, ValueError) as error:
                raise results.error("a part of the answer cannot be sent", "part", part, dumps) from error
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
    return dumps({"modelname": model, "result": part})


def _to_bytes(part: object) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, Encoded):
        return part.body
    if isinstance(part, Picture):
        return part.png()
    return part if isinstance(part, bytes) else dumps(part) + b"\n"


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
    try:
        for chunk in chunks:
            for start in range(0, len(chunk), MAX_PAYLOAD_BYTES):
                yield payload_part(chunk[start : start + MAX_PAYLOAD_BYTES])
    except TriremeError as error:
        yield stream_failure(error)
    finally:
        finish(chunks)


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
    return (
        struct.pack("!B", len(encoded_name))
        + encoded_name
        + struct.pack("!BH", STRING_TYPE, len(encoded_value))
        + encoded_value
    )
