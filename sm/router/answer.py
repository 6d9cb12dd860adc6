"""Turn the results of an invocation, or an error, into the body and headers of an answer."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import orjson

from sm.client.results import Encoded, Picture, encodable
from sm.errors import ClientFailed, TriremeError
from sm.router.invocation import JSON, JSON_LINES, NPY, PNG, Invocation


@dataclass(frozen=True)
class Answer:
    """What goes back to the caller: a body, or chunks of one that is still being made."""

    body: bytes | Iterator[bytes]
    content_type: str = JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def read(self) -> bytes:
        """The body in one piece; of a stream, once it has ended."""
        return self.body if isinstance(self.body, bytes) else b"".join(self.body)


@dataclass(frozen=True)
class EncodedRecord:
    """A record's result as the JSON that is sent of it. ``failure`` is set for a record that failed."""

    body: bytes
    failure: TriremeError | None = None


def write(invocation: Invocation, results: Sequence[object]) -> Answer:
    """Results to an answer, in the type the caller accepts where they can be had in it, else JSON.

    A result that is a :class:`TriremeError` belongs to a record that failed: it takes its place in a
    list, and is raised when no record succeeded.
    """
    if invocation.many:
        return write_list(invocation, (encode_record(invocation.model, result) for result in results))
    result = results[0]
    if isinstance(result, TriremeError):
        raise result
    if isinstance(result, Encoded):
        return _with_headers(Answer(result.body, result.content_type), invocation)
    binary = _binary(result, invocation.accept)
    if binary is not None:
        return _with_headers(Answer(binary, invocation.accept), invocation)
    try:
        body = dumps({"modelname": invocation.model, "result": _shown(result)})
    except (TypeError, ValueError) as error:
        raise _not_sendable(invocation.model, error) from error
    return _with_headers(Answer(body), invocation)


def write_list(invocation: Invocation, records: Iterable[EncodedRecord]) -> Answer:
    """The answer to a list of records, as JSON or a line for each; the first failure if none succeeded."""
    if invocation.accept == JSON_LINES:
        answer = Answer(join_records(records, b"\n"), JSON_LINES)
    else:
        start = b'{"modelname":' + dumps(invocation.model) + b',"result":['
        answer = Answer(join_records(records, b",", start, b"]}"))
    return _with_headers(answer, invocation)


def join_records(
    records: Iterable[EncodedRecord], separator: bytes, start: bytes = b"", end: bytes = b""
) -> bytes:
    """The records one behind the other; raises the first failure where no record succeeded."""
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
    """A result, or a :class:`TriremeError`, as it stands in a list."""
    if isinstance(result, TriremeError):
        return encode_failure(result)
    try:
        return EncodedRecord(dumps(_shown(result)))
    except (TypeError, ValueError) as error:
        return encode_failure(_not_sendable(model, error))


def encode_failure(error: TriremeError) -> EncodedRecord:
    """What stands in the place of a record or a line that failed."""
    # Without the frames that its tracebacks hold: hundreds of failures wait for their turn.
    error.__traceback__ = error.__context__ = error.__cause__ = None
    body = dumps({"error": error.sentence, "code": error.code, **error.details})
    return EncodedRecord(body, error)


def _with_headers(answer: Answer, invocation: Invocation) -> Answer:
    """With those that the client has set."""
    if not invocation.answer_headers:
        return answer
    return replace(answer, headers={**answer.headers, **invocation.answer_headers})


def _not_sendable(model: str, reason: Exception) -> ClientFailed:
    return ClientFailed(f"the result of {model!r} cannot be sent: {reason}")


def write_error(error: TriremeError, request_id: str) -> Answer:
    """The one shape of every error."""
    body = {"error": error.sentence, "code": error.code, "request_id": request_id, **error.details}
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    return Answer(dumps(body), status=error.status, headers=headers)


def dumps(value: object) -> bytes:
    """JSON bytes; NumPy values included. NaN and infinity become null, since JSON has neither."""
    return orjson.dumps(value, default=encodable, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def _binary(result: object, accept: str) -> bytes | None:
    if accept == PNG and isinstance(result, Picture):
        return result.png()
    if accept == NPY and not isinstance(result, Picture):
        return _npy(result)
    return None


def _npy(result: object) -> bytes | None:
    try:
        array = np.asarray(result)
    except ValueError:
        return None
    if array.dtype.kind not in "biuf":
        return None
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()


def _shown(result: object) -> object:
    return result.as_json() if isinstance(result, Picture) else result
