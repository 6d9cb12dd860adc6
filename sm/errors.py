"""The errors that a caller sees: each class has its status and its ``code``.

Every error that reaches a caller has one shape: ``{"error", "code", "request_id"}``. Code below the
routes raises these and never builds an answer; :mod:`sm.router.app` turns them into one.
"""

from __future__ import annotations

from typing import Literal

#: What is wrong with a tensor.
TensorFault = Literal["name", "datatype", "shape"]


class TriremeError(Exception):
    """A failure with a sentence for the caller. ``retry_after`` is in seconds."""

    status = 500
    code = "internal_error"
    retry_after: int | None = None

    def __init__(self, sentence: str, **details: object) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        #: Extra members of the answer's body, such as ``field`` or ``models``.
        self.details = details


class BadInput(TriremeError):
    """The body, a header or a parameter cannot be understood."""

    status, code = 400, "bad_input"


class WrongTensor(BadInput):
    """Triton refused a tensor for its name, datatype or shape; ``explanation`` is for the log.

    Whether that is the caller's fault or the client's, who made the tensor, the dispatcher finds out.
    """

    def __init__(
        self, sentence: str, fault: TensorFault, explanation: str = "", dtype: object | None = None
    ) -> None:
        super().__init__(sentence)
        self.fault: TensorFault = fault
        self.explanation = explanation or sentence
        #: NumPy's, of the tensor; None where there is none.
        self.dtype = dtype


class Unauthorized(TriremeError):
    """The box asks for an API key, and the request has none. nginx answers so."""

    status, code = 401, "unauthorized"


class Forbidden(TriremeError):
    """The path is not for callers, or not without the header that Triton was told to ask for."""

    status, code = 403, "forbidden"


class NotFound(TriremeError):
    """No such path."""

    status, code = 404, "not_found"


class UnknownModel(TriremeError):
    """No such model, client or version."""

    status, code = 404, "unknown_model"


class MethodNotAllowed(TriremeError):
    """The path exists, the method does not."""

    status, code = 405, "method_not_allowed"


class NotAcceptable(TriremeError):
    """The answer cannot be had in the content type that the caller accepts."""

    status, code = 406, "not_acceptable"


class Conflict(TriremeError):
    """A model of that name is there already, or is being loaded or unloaded."""

    status, code = 409, "conflict"


class TooLarge(TriremeError):
    """The body is over the limit."""

    status, code = 413, "too_large"


class UnsupportedType(TriremeError):
    """A content type that the model's client does not take."""

    status, code = 415, "unsupported_content_type"


class WrongPayload(TriremeError):
    """The payload has the wrong shape; ``field`` is the path of the offending part."""

    status, code = 422, "wrong_payload"


class Overloaded(TriremeError):
    """More requests than the box takes at once."""

    status, code, retry_after = 429, "overloaded", 1


class RateLimited(TriremeError):
    """The API key is used more often than it may be. nginx answers so."""

    status, code, retry_after = 429, "rate_limited", 1


class StorageFailed(TriremeError):
    """S3 answers what cannot be used, or refuses what the caller has no part in."""

    status, code = 502, "storage_failed"


class NotReady(TriremeError):
    """Triton, a model or a worker is not there (yet)."""

    status, code, retry_after = 503, "not_ready", 1


class DeadlinePassed(TriremeError):
    """The invocation's time is over."""

    status, code = 504, "deadline_passed"


class CallerGone(TriremeError):
    """The caller hung up; nobody reads this answer (499 is nginx's number for it)."""

    status, code = 499, "caller_gone"


class OutOfMemory(TriremeError):
    """Triton ran out of memory, on the host or on the GPU."""

    status, code = 507, "out_of_memory"


class Unsupported(TriremeError):
    """Triton or the client has no such operation."""

    status, code = 501, "not_implemented"


class ClientFailed(TriremeError):
    """A client plugin raised something of its own. The traceback is in the log, never in the answer."""

    status, code = 500, "client_failed"


class ChosenStatus(TriremeError):
    """A toolkit script's own error, with the status that it chose (400 to 599)."""

    code = "script_error"

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status if 400 <= status <= 599 else 500


class ModelFailed(TriremeError):
    """A model raised something of its own inside Triton. Its traceback is in Triton's log."""

    status, code = 500, "model_failed"


class StartError(Exception):
    """The box cannot start: one sentence, exit status 1."""
