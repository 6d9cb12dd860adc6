"""Translate a failed call to Triton: the error for the caller, and whether its region may be reused."""

from __future__ import annotations

import re
from dataclasses import dataclass

from grpc import StatusCode as Code

from sm.errors import (
    BadInput,
    DeadlinePassed,
    Interrupted,
    ModelFailed,
    NotReady,
    OutOfMemory,
    Overloaded,
    TriremeError,
    UnknownModel,
    Unsupported,
)

#: Triton's and its backends' messages when memory is short.
MEMORY = re.compile(
    r"out of memory|bad_alloc|MemoryError|shared memory pool|failed to allocate", re.IGNORECASE
)

#: The python backend's message when it gives up on the process ("stub") of a model instance. It may begin
#: with the request's id and the ensembles around the model. The whole message must match, because other
#: messages may contain a caller's text.
STALLED_STUB = re.compile(
    r"(?:\[request id: .*?\] )?(?:in ensemble '[^']*', )*"
    r"(?:Stub process (?:'(?P<instance>[^']*)' )?is not healthy|Failed to obtain the health mutex)\.",
    re.DOTALL,
)


@dataclass(eq=False)
class Failed(Exception):
    """A call that failed."""

    #: The class of the caller's error.
    kind: type[TriremeError]
    #: The caller's error message.
    sentence: str
    #: True if Triton has finished the request, so that its region may be reused.
    finished: bool
    #: True if Triton does not know the region: it was restarted.
    lost_region: bool = False
    #: True if an output was larger than its room in the region.
    overflowed: bool = False
    #: The model instance whose process Triton gave up on; "" if Triton did not name it, None if there is
    #: none.
    stalled: str | None = None

    @property
    def error(self) -> TriremeError:
        """The caller's error, a new one each time.

        A stored error, raised while this exception is handled, would form a reference cycle with it. The
        request's region would then stay in use until the garbage collector runs.
        """
        return self.kind(self.sentence)


@dataclass(frozen=True)
class Rule:
    """How to translate a failure. The first rule that matches is used."""

    #: gRPC's code; None for any.
    code: Code | None
    #: A pattern in Triton's text.
    text: str
    kind: type[TriremeError]
    #: False if Triton may still write an answer.
    finished: bool
    #: Empty for Triton's own text.
    sentence: str = ""


#: gRPC's codes for the statuses of Triton's HTTP.
HTTP_CODES = {
    400: Code.INVALID_ARGUMENT,
    404: Code.NOT_FOUND,
    408: Code.DEADLINE_EXCEEDED,
    429: Code.RESOURCE_EXHAUSTED,
    499: Code.CANCELLED,
    501: Code.UNIMPLEMENTED,
    503: Code.UNAVAILABLE,
}

UNREACHABLE = "Triton is not there; it is starting or being started again"
#: Triton's message for a model that is being loaded or unloaded.
MODEL_NOT_READY = "in a not-ready state|not at ready state"
RULES = (
    Rule(None, MODEL_NOT_READY, NotReady, True),
    Rule(None, "unknown model|model version from specified version string", UnknownModel, True),
    Rule(None, "maximum queue size", Overloaded, True, "the model's queue in Triton is full"),
    Rule(
        Code.UNAVAILABLE,
        "timeout expired",
        DeadlinePassed,
        True,
        "the invocation's time ended in Triton's queue",
    ),
    Rule(Code.UNAVAILABLE, "failed to connect", NotReady, True, UNREACHABLE),
    Rule(Code.UNAVAILABLE, "", Interrupted, False, UNREACHABLE),
    Rule(Code.CANCELLED, "", Interrupted, False, UNREACHABLE),
    Rule(
        Code.DEADLINE_EXCEEDED,
        "",
        DeadlinePassed,
        False,
        "the invocation's time ended while Triton ran the model",
    ),
    Rule(Code.NOT_FOUND, "", UnknownModel, True),
    Rule(Code.INVALID_ARGUMENT, "", BadInput, True),
    Rule(Code.UNIMPLEMENTED, "", Unsupported, True),
    Rule(Code.RESOURCE_EXHAUSTED, "", Overloaded, False),
    Rule(None, MEMORY.pattern, OutOfMemory, False),
    Rule(
        None,
        "Stub process .*is not healthy|Failed to obtain the health mutex",
        Interrupted,
        False,
        "the model's process does not respond; it is started again",
    ),
    Rule(None, "Failed to process the request", ModelFailed, True),
    Rule(None, "", ModelFailed, False),
)


def translate_status(code: Code, text: str) -> Failed:
    """Translate the status with which a call ended."""
    if "Unable to find shared memory region" in text:
        return Failed(NotReady, "Triton lost its shared memory", finished=True, lost_region=True)
    if "shared memory size specified with the request for output" in text:
        return Failed(ModelFailed, sentence(text), finished=True, overflowed=True)
    rule = next(
        rule for rule in RULES if rule.code in (None, code) and re.search(rule.text, text, re.IGNORECASE)
    )
    stalled = stalled_instance(text) if code in (Code.INTERNAL, Code.UNKNOWN) else None
    return Failed(rule.kind, rule.sentence or sentence(text), rule.finished, stalled=stalled)


def translate_http_status(status: int, text: str) -> Failed:
    """Translate an error from Triton's HTTP port to the same failure as over gRPC."""
    return translate_status(HTTP_CODES.get(status, Code.INTERNAL), text)


def stalled_instance(text: str) -> str | None:
    """Return the model instance whose process Triton gave up on.

    Returns:
        Empty if Triton did not name it; None for any other failure.
    """
    match = STALLED_STUB.fullmatch(text)
    return None if match is None else match["instance"] or ""


#: Places in the box's run folder; what follows is the model's own.
RUN_PATHS = re.compile(r"/[^\s'\":(]*/trireme-\w{8}/(?:archives/\w+/files/|models/|repository/)?")
#: Names of shared memory: the box's and its Python models', and the Python backend's default. Whoever knows
#: one is a step nearer to reading it (CVE-2025-23320).
REGION_NAMES = re.compile(r"/?\b(?:trireme-[0-9a-f]|triton_python_backend_shm)[\w-]*")


def sentence(text: str) -> str:
    """Return Triton's text for a caller, without the request's id, the model instance and the traceback.

    The names of shared memory and the path of the run folder are left out.
    """
    text = RUN_PATHS.sub("", text.partition("\n\nAt:")[0])
    text = REGION_NAMES.sub("…", text)
    text = re.sub(r"^\[request id: [^\]]*\] ", "", text)
    text = re.sub(
        r"^Failed to process the request\(s\) for model (?:instance )?'(.+?)(?:_\d+)*', message: ",
        r"model '\1' failed: ",
        text,
    )
    return " ".join(text.split())[:500]
