"""Translate a failed call to Triton: the error for the caller, and what became of the shared memory it
used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from grpc import StatusCode as Code

from sm.errors import (
    BadInput,
    DeadlinePassed,
    ModelFailed,
    NotReady,
    OutOfMemory,
    Overloaded,
    TriremeError,
    UnknownModel,
    Unsupported,
)

MEMORY = re.compile(
    r"out of memory|bad_alloc|MemoryError|shared memory pool|failed to allocate", re.IGNORECASE
)


#: The python backend's message when it gives up on the process ("stub") of a model instance. The whole
#: message must match, as a caller's text may be part of others: after the request's id, and the ensembles
#: around it.
STALLED_STUB = re.compile(
    r"(?:\[request id: .*?\] )?(?:in ensemble '[^']*', )*"
    r"(?:Stub process (?:'(?P<instance>[^']*)' )?is not healthy|Failed to obtain the health mutex)\.",
    re.DOTALL,
)


@dataclass(eq=False)
class Failed(Exception):
    """A call that failed.

    ``settled``: Triton has finished with the request and its memory. ``lost_region``: it does not know the
    region. ``outgrown``: an output is larger than its place in the region. ``stalled``: the model instance
    whose process Triton gave up on, "" if it named none.
    """

    kind: type[TriremeError]
    sentence: str
    settled: bool
    lost_region: bool = False
    outgrown: bool = False
    stalled: str | None = None

    @property
    def error(self) -> TriremeError:
        """Create the error anew each time. If it were stored here and raised while this is handled, the two
        would form a reference cycle, and the request's region would stay in use until the garbage collector
        runs.
        """
        return self.kind(self.sentence)


@dataclass(frozen=True)
class Rule:
    """A failure by code (None: any) and a part of Triton's text; the first rule that matches is used.

    If ``settled`` is False, Triton may still be writing an answer.
    """

    code: Code | None
    text: str
    kind: type[TriremeError]
    settled: bool
    sentence: str = ""


UNREACHABLE = "Triton is not there; it is starting or being started again"
RULES = (
    Rule(None, "in a not-ready state|not at ready state", NotReady, True),
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
    Rule(Code.UNAVAILABLE, "", NotReady, False, UNREACHABLE),
    Rule(Code.CANCELLED, "", NotReady, False, UNREACHABLE),
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
        NotReady,
        False,
        "the model's process does not respond; it is started again",
    ),
    Rule(None, "Failed to process the request", ModelFailed, True),
    Rule(None, "", ModelFailed, False),
)


def failed(code: Code, text: str) -> Failed:
    """Translate the status with which a call ended."""
    if "Unable to find shared memory region" in text:
        return Failed(NotReady, "Triton lost its shared memory", settled=True, lost_region=True)
    if "shared memory size specified with the request for output" in text:
        return Failed(ModelFailed, sentence(text), settled=True, outgrown=True)
    rule = next(
        rule for rule in RULES if rule.code in (None, code) and re.search(rule.text, text, re.IGNORECASE)
    )
    stalled = stalled_instance(text) if code in (Code.INTERNAL, Code.UNKNOWN) else None
    return Failed(rule.kind, rule.sentence or sentence(text), rule.settled, stalled=stalled)


def stalled_instance(text: str) -> str | None:
    """Return the model instance whose process Triton gave up on; "" if it is not named, None for other
    failures.
    """
    match = STALLED_STUB.fullmatch(text)
    return None if match is None else match["instance"] or ""


def describe(text: str, run: bool) -> Failed:
    """Translate an error among a stream's answers, which has no code. ``run``: the model had the request
    already.
    """
    return failed(Code.UNKNOWN if run else Code.INVALID_ARGUMENT, text)


def sentence(text: str) -> str:
    """Return Triton's text for a caller, without the request's id, the model instance and the traceback."""
    text = text.partition("\n\nAt:")[0]
    text = re.sub(r"^\[request id: [^\]]*\] ", "", text)
    text = re.sub(
        r"^Failed to process the request\(s\) for model (?:instance )?'(.+?)(?:_\d+)*', message: ",
        r"model '\1' failed: ",
        text,
    )
    return " ".join(text.split())[:500]
