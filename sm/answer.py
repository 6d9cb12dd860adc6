"""An answer: what the results of an invocation, or an error, become on their way to the caller."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import orjson

from sm.errors import ClientFailed, TriremeError
from sm.invocation import JSON, JSON_LINES, NPY, PNG, Invocation
from sm.results import Encoded, Picture, encodable


@dataclass(frozen=True)
class Answer:
    """What goes back to the caller: a body, or chunks of one that is still being made."""

    body: bytes | Iterator[bytes]
    content_type: str = JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def whole(self) -> bytes:
        """The body in one piece; of a stream, once it has ended."""
        return self.body if isinstance(self.body, bytes) else b"".join(self.body)


def write(invocation: Invocation, results: Sequence[object]) -> Answer:
    """Results to an answer, with the headers that the client has set."""
    answer = _written(invocation, results)
    if not invocation.answer_headers:
        return answer
    return replace(answer, headers={**answer.headers, **invocation.answer_headers})


def _written(invocation: Invocation, results: Sequence[object]) -> Answer:
    """Results to bytes, in the type the caller accepts where they can be had in it, else JSON.

    A result that is a :class:`TriremeError` belongs to a record that failed: it takes its place in a
    list, and is raised when no record succeeded.
    """
    failures = [result for result in results if isinstance(result, TriremeError)]
    if failures and len(failures) == len(results):
        raise failures[0]
    if isinstance(results[0], Encoded):
        return Answer(results[0].body, results[0].content_type)
    if not invocation.many:
        binary = _binary(results[0], invocation.accept)
        if binary is not None:
            return Answer(binary, invocation.accept)
    try:
        return _json(invocation, [_shown(result) for result in results])
    except (TypeError, ValueError) as error:
        raise ClientFailed(f"the result of {invocation.model!r} cannot be sent: {error}") from error


def _json(invocation: Invocation, shown: list[object]) -> Answer:
    if invocation.many and invocation.accept == JSON_LINES:
        return Answer(b"\n".join(map(dumps, shown)), JSON_LINES)
    return Answer(dumps({"modelname": invocation.model, "result": shown if invocation.many else shown[0]}))


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
    if isinstance(result, TriremeError):
        return {"error": result.sentence, "code": result.code, **result.details}
    if isinstance(result, Picture):
        return result.as_json()
    return result
