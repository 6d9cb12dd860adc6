from __future__ import annotations

import pytest
from grpc import StatusCode as Code

from sm import errors
from sm.triton.call_failures import translate_status

SAYINGS = [
    (Code.NOT_FOUND, "Request for unknown model: 'x' is not found", errors.UnknownModel, True),
    (Code.UNAVAILABLE, "Request for unknown model: 'x' is not found", errors.UnknownModel, True),
    (
        Code.UNAVAILABLE,
        "Request for unknown model: 'x' version 1 is not at ready state",
        errors.NotReady,
        True,
    ),
    (Code.INVALID_ARGUMENT, "unexpected inference output 'zz' for model 'x'", errors.BadInput, True),
    (Code.UNAVAILABLE, "failed to connect to all addresses; last error: ...", errors.NotReady, True),
    (Code.UNAVAILABLE, "Socket closed", errors.NotReady, False),
    (Code.UNAVAILABLE, "Exceeds maximum queue size", errors.Overloaded, True),
    (Code.UNAVAILABLE, "Request timeout expired", errors.DeadlinePassed, True),
    (Code.UNIMPLEMENTED, "no such operation", errors.Unsupported, True),
    (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", errors.DeadlinePassed, False),
    (Code.RESOURCE_EXHAUSTED, "too much", errors.Overloaded, False),
    (Code.INTERNAL, "CUDA error: out of memory", errors.OutOfMemory, False),
    (Code.INTERNAL, "Failed to increase the shared memory pool size for key", errors.OutOfMemory, False),
    (Code.INTERNAL, "Stub process 'x_0_0' is not healthy.", errors.NotReady, False),
    (Code.UNKNOWN, "", errors.ModelFailed, False),
    (Code.CANCELLED, "Channel closed!", errors.NotReady, False),
]


@pytest.mark.parametrize(("code", "text", "kind", "finished"), SAYINGS)
def test_each_code_has_its_error(code: Code, text: str, kind: type[Exception], finished: bool) -> None:
    failure = translate_status(code, text)
    assert type(failure.error) is kind
    assert failure.finished is finished


def test_a_region_that_triton_does_not_know_is_lost() -> None:
    assert translate_status(Code.NOT_FOUND, "Unable to find shared memory region: 'trireme-1'").lost_region


def test_a_caller_sees_neither_traceback_nor_instance() -> None:
    text = (
        "Failed to process the request(s) for model instance 'a_b_0_0', message: ValueError: no\n\nAt:\n"
        "  /somewhere/model.py(7): execute\n"
    )
    assert translate_status(Code.INTERNAL, text).error.sentence == "model 'a_b' failed: ValueError: no"
