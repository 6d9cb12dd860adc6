"""The errors that a caller sees: each class has its status and its ``code``.

Every error that reaches a caller has one shape: ``{"error", "code", "request_id"}``. Code below the
routes raises these and never builds a response; ``sm.http.responses`` turns them into one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

#: The part of a tensor that is wrong.
TensorFault = Literal["name", "datatype", "shape", "batch"]


#: Characters of a text in an error: a wrong name may be as long as a body.
MAX_CHARACTERS = 4096


def shortened(text: str) -> str:
    """Return a text for an error, without what is too long to read."""
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


#: The settings of what a body may be, and of the memory for what is made of it.
MAX_BODY_SETTING, DECODE_SETTING = "SAGEMAKER_MAX_PAYLOAD_IN_MB", "TRIREME_DECODE_MEMORY_MB"


def error_body(
    sentence: str, code: str, request_id: str | None = None, details: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return the JSON of an error. That of a failed record among others has no request id."""
    id_member = {} if request_id is None else {"request_id": request_id}
    return {"error": sentence, "code": code, **id_member, **(details or {})}


#: A place in a request: names of members, and numbers in lists, such as ``("payload", 2, "text")``.
FieldPath = tuple[str | int, ...]
FIELD_PART = re.compile(r"([^.\[\]]+)|\[([0-9]{1,9})\]")


def write_path(path: FieldPath) -> str:
    """Return a path in words: ``payload[2].text``."""
    first, *rest = path
    return f"{first}{''.join(f'[{part}]' if isinstance(part, int) else f'.{part}' for part in rest)}"


def read_path(field: str) -> FieldPath:
    """Return the path that :func:`write_path` writes so."""
    if len(field) > MAX_CHARACTERS:
        return (field,)
    parts = tuple(int(part[2]) if part[2] else part[1] for part in FIELD_PART.finditer(field))
    return parts if parts and write_path(parts) == field else (field,)


class TriremeError(Exception):
    """An error that the caller gets, in one sentence.

    Args:
        sentence: What is wrong. If the field is a path, the sentence is about it, and does not name it.
        details: Extra members of the answer's body, such as ``models``. The ``field`` is what is wrong: a
            path, or its words, with which the sentence then begins. The request's form has its own words.
    """

    #: The HTTP status.
    status = 500
    #: The slug in the answer's ``code``.
    code = "internal_error"
    #: Seconds, for the ``Retry-After`` header; None for no header.
    retry_after: int | None = None
    #: True if the sentence may quote the caller's data. The log then leaves out the quoted parts.
    quotes_caller = False
    #: The log's text if it must not have the sentence; None if it may.
    log_reason: str | None = None
    #: Records of a list that failed with it.
    records = 1

    #: The field that the error is about; empty if it is about none.
    path: FieldPath = ()
    #: The problem of that field: the sentence without its name. Empty if the sentence does not begin with it.
    problem = ""

    def __init__(self, sentence: str, **details: object) -> None:
        if "field" in details:
            sentence = self._take_field(sentence, details)
        sentence = shortened(sentence)
        super().__init__(sentence)
        self.sentence = sentence
        #: Extra members of the answer's body, such as ``field`` or ``models``.
        self.details = {
            name: shortened(value) if isinstance(value, str) else value for name, value in details.items()
        }

    def _take_field(self, sentence: str, details: dict[str, object]) -> str:
        """Note the field and the problem, and return the sentence with both."""
        field = details["field"]
        if isinstance(field, tuple):
            self.path, self.problem = field, sentence
            details["field"] = write_path(field)
            return f"{details['field']}: {sentence}"
        if isinstance(field, str):
            self.path = read_path(field)
            self.problem = sentence[len(field) + 2 :] if sentence.startswith(f"{field}: ") else ""
        return sentence

    def at(self, path: FieldPath) -> TriremeError:
        """Return the error with another path to the field that it is about."""
        moved = type(self).__new__(type(self))
        moved.__dict__.update(self.__dict__)
        if self.problem:
            TriremeError.__init__(moved, self.problem, **{**self.details, "field": path})
            return moved
        field = write_path(path)
        sentence = self.sentence.replace(write_path(self.path), field, 1)
        TriremeError.__init__(moved, sentence, **{**self.details, "field": field})
        return moved

    def body(self, request_id: str | None = None) -> dict[str, object]:
        """Return the JSON of the error, see :func:`error_body`."""
        return error_body(self.sentence, self.code, request_id, self.details)


class BadInput(TriremeError):
    """The body, a header or a parameter cannot be understood."""

    status, code, quotes_caller = 400, "bad_input", True


class WrongTensor(BadInput):
    """Triton rejected a tensor for its name, datatype or shape; ``explanation`` is for the log.

    A client created the tensor, perhaps from the caller's data. The dispatcher decides whose error it is.
    """

    def __init__(
        self, sentence: str, fault: TensorFault, explanation: str = "", dtype: object | None = None
    ) -> None:
        super().__init__(sentence)
        self.fault: TensorFault = fault
        self.explanation = explanation or sentence
        #: The tensor's NumPy dtype; None if unknown.
        self.dtype = dtype


class Unauthorized(TriremeError):
    """The box asks for an API key, and the request has none. nginx sends this answer."""

    status, code = 401, "unauthorized"


class Forbidden(TriremeError):
    """Callers may not use the path at all, or only with the header that ``--http-restricted-api`` names."""

    status, code = 403, "forbidden"


class NotFound(TriremeError):
    """No such path, or a model says that something does not exist."""

    status, code = 404, "not_found"


class UnknownModel(TriremeError):
    """No such model, client or version."""

    status, code = 404, "unknown_model"


class MethodNotAllowed(TriremeError):
    """The path exists, the method does not."""

    status, code = 405, "method_not_allowed"


class NotAcceptable(TriremeError):
    """No answer is available in a content type that the caller accepts."""

    status, code = 406, "not_acceptable"


class RequestTimeout(TriremeError):
    """The request comes too slowly. nginx closes such a connection without this answer."""

    status, code = 408, "request_timeout"


class StreamStalled(TriremeError):
    """The caller of a stream takes nothing, or takes it much more slowly than the model answers."""

    status, code = 408, "stream_stalled"


class Conflict(TriremeError):
    """A model of that name is loaded already, or is being loaded or unloaded."""

    status, code = 409, "conflict"


class TooLarge(TriremeError):
    """The body is over the limit."""

    status, code = 413, "too_large"


def body_too_large(most: int, unpacked: bool = False) -> TooLarge:
    """Return the error for a body of more than ``most`` bytes, as it is sent or once it is unpacked."""
    return TooLarge(
        f"the body is larger than the {most} bytes this box accepts{' once it is unpacked' * unpacked}: "
        f"send less at once, or raise {MAX_BODY_SETTING}",
        max_body_bytes=most,
        setting=MAX_BODY_SETTING,
    )


class HeadersTooLong(BadInput):
    """The headers, or one of them, are longer than gunicorn or Triton reads."""

    status = 431


class UnsupportedType(TriremeError):
    """The model's client does not accept the content type."""

    status, code, quotes_caller = 415, "unsupported_content_type", True


class WrongPayload(TriremeError):
    """The payload has the wrong shape; ``field`` is the path of the offending part."""

    status, code, quotes_caller = 422, "wrong_payload", True


class NotRun(TriremeError):
    """So many records before it in the request are wrong that the record was not looked at."""

    status, code = 422, "not_run"


class Overloaded(TriremeError):
    """More requests than the box accepts at once."""

    status, code, retry_after = 429, "overloaded", 1


class RateLimited(TriremeError):
    """The API key is used more often than its limit allows. nginx sends this answer."""

    status, code, retry_after = 429, "rate_limited", 1


class StorageFailed(TriremeError):
    """S3 refused the box itself, or sent an answer that cannot be used."""

    status, code = 502, "storage_failed"


class NotReady(TriremeError):
    """Triton, a model or a worker is not ready."""

    status, code, retry_after = 503, "not_ready", 1


class Interrupted(NotReady):
    """A process ended, or is in doubt, while it had the call. The call is sent again if it may be."""


class Refused(NotReady):
    """Triton answered the call: it does not run the model now. The call is sent again if it may be."""


class Unavailable(NotReady):
    """The call may not be sent again: it waits for something that does not come, or is of no use."""


class DeadlinePassed(TriremeError):
    """The invocation's time is over."""

    status, code = 504, "deadline_passed"


class CallerGone(TriremeError):
    """The caller disconnected. The answer goes nowhere; 499 is nginx's status for it."""

    status, code = 499, "caller_gone"


class OutOfMemory(TriremeError):
    """Triton ran out of memory, on the host or on the GPU."""

    status, code = 507, "out_of_memory"


class Unsupported(TriremeError):
    """Triton or the client has no such operation."""

    status, code = 501, "not_implemented"


class ClientFailed(TriremeError):
    """A client plugin raised an exception. The traceback is in the log, never in the answer."""

    status, code = 500, "client_failed"


class ChosenStatus(TriremeError):
    """A toolkit script's own error, with the status that it chose (400 to 599)."""

    code, log_reason = "script_error", "the script rejected the request with a message of its own"

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status if 400 <= status <= 599 else 500


class ModelFailed(TriremeError):
    """A model raised an exception inside Triton. The traceback is in Triton's log."""

    status, code = 500, "model_failed"
    log_reason = "the model raised an exception: see Triton's lines of this time"


class ModelCrashed(TriremeError):
    """A model's process died twice under the same request, so it is not sent again."""

    status, code = 500, "model_crashed"


class CommandError(Exception):
    """A command of ``sm`` failed: one sentence, exit status 1."""


class StartError(CommandError):
    """The box cannot start."""


def as_trireme_error(error: BaseException) -> TriremeError:
    """Return the error that the caller of a failed invocation reads."""
    if isinstance(error, TriremeError):
        return error
    if isinstance(error, GeneratorExit):
        # The caller left before the stream ended.
        return CallerGone("the caller hung up")
    return ClientFailed(f"unexpected {type(error).__name__}")
