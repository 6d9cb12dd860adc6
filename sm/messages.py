"""What both planes answer with and read: answers, errors, JSON bodies and their media types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from sm.errors import BadInput, TriremeError

JSON = "application/json"
JSON_LINES = "application/jsonlines"
NPY = "application/x-npy"
PNG = "image/png"
EVENTS = "text/event-stream"
#: SageMaker's content type of Triton's binary form: JSON of so many bytes, then the tensors.
BINARY = "application/vnd.sagemaker-triton.binary+json"


@dataclass(slots=True)
class Answer:
    """The answer to a caller: a body, or chunks of a body that is still being produced."""

    body: bytes | Iterator[bytes]
    content_type: str = JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def read(self) -> bytes:
        """Return the whole body; for a stream, after it has ended."""
        return self.body if isinstance(self.body, bytes) else b"".join(self.body)


def write_error(error: TriremeError, request_id: str) -> Answer:
    """Encode an error in the form that all errors have."""
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    return Answer(orjson.dumps(error.body(request_id)), status=error.status, headers=headers)


def parse_json(body: bytes) -> Any:
    """Parse standard JSON: no NaN, and at most the parser's 1,024 levels."""
    check_not_empty(body)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise not_json(error) from None


def not_json(error: orjson.JSONDecodeError) -> BadInput:
    """Return the caller's error for a body that the parser refuses."""
    reason = str(error)
    if "not valid UTF-8" in error.msg:
        # The parser looks for this first, so it says nothing of where.
        reason = "it is not UTF-8; a picture or other bytes need a Content-Type of their own"
    elif error.doc[error.pos : error.pos + 1] == "'":
        reason = f"{reason}; JSON has double quotes"
    return BadInput(f"the body is not JSON: {reason}")


def check_not_empty(body: bytes) -> None:
    """Raise :class:`BadInput` for a body of white space only."""
    if not body or body.isspace():
        raise BadInput("the body is empty")
