"""Turn the results of an invocation, or an error, into the body and headers of an answer."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import orjson

from sm.client import results
from sm.client.results import Encoded, Picture, encodable
from sm.errors import TriremeError
from sm.http.messages import JSON, JSON_LINES, NPY, PNG, Answer
from sm.router.invocation import DispatchRequest

#: Dataclasses are passed to :func:`encodable`, because a picture is one.
OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS


@dataclass(slots=True)
class EncodedRecord:
    """A record's result as encoded JSON. ``failure`` is set for a record that failed."""

    body: bytes
    failure: TriremeError | None = None


def write(request: DispatchRequest, result: object) -> Answer:
    """Encode the result of a single record in the type that the caller accepts if possible, else as JSON.

    A result that is a :class:`TriremeError` is raised.
    """
    if isinstance(result, TriremeError):
        raise result
    if isinstance(result, Encoded):
        return Answer(result.body, result.content_type, headers=request.answer_headers)
    if request.accept != JSON:
        binary = _binary(result, request.accept)
        if binary is not None:
            return Answer(binary, request.accept, headers=request.answer_headers)
    try:
        body = orjson.dumps({"modelname": request.model, "result": result}, encodable, OPTIONS)
    except (TypeError, ValueError) as error:
        raise _unencodable(request.model, result) from error
    return Answer(body, headers=request.answer_headers)


def write_list(request: DispatchRequest, records: Iterable[EncodedRecord]) -> Answer:
    """Join encoded records to a JSON list, or to JSON lines. Raises the first failure if none succeeded."""
    if request.accept == JSON_LINES:
        return Answer(join_records(records, b"\n"), JSON_LINES, headers=request.answer_headers)
    start = b'{"modelname":' + dumps(request.model) + b',"result":['
    return Answer(join_records(records, b",", start, b"]}"), headers=request.answer_headers)


def join_records(
    records: Iterable[EncodedRecord], separator: bytes, start: bytes = b"", end: bytes = b""
) -> bytes:
    """Join the records' bytes. Raises the first failure if no record succeeded."""
    body, first_failure, succeeded = io.BytesIO(), None, False
    body.write(start)
    for number, record in enumerate(records):
        if number:
            body.write(separator)
        body.write(record.body)
        succeeded = succeeded or record.failure is None
        first_failure = first_failure or record.failure
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


def _binary(result: object, accept: str) -> bytes | None:
    """Encode a result as PNG or ``.npy`` if the caller accepts that; None if the answer is JSON."""
    if accept == PNG and isinstance(result, Picture):
        return result.png()
    if accept == NPY and not isinstance(result, Picture):
        return _npy(result)
    return None


def _npy(result: object) -> bytes | None:
    """Encode a result as ``.npy``; None if it is not a regular array of numbers."""
    try:
        array = np.asarray(result)
    except ValueError:
        return None
    if array.dtype.kind not in "biuf":
        return None
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()
