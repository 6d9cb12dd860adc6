from __future__ import annotations

import pytest
from grpc import StatusCode as Code

from sm import errors
from sm.triton.call_failures import translate_status

GRPC_STATUSES = [
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
    (Code.UNAVAILABLE, "Socket closed", errors.Interrupted, False),
    (Code.UNAVAILABLE, "Exceeds maximum queue size", errors.Overloaded, True),
    (Code.UNAVAILABLE, "Request timeout expired", errors.DeadlinePassed, True),
    (Code.UNIMPLEMENTED, "no such operation", errors.Unsupported, True),
    (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", errors.DeadlinePassed, False),
    (Code.RESOURCE_EXHAUSTED, "too much", errors.Overloaded, False),
    (Code.INTERNAL, "CUDA error: out of memory", errors.OutOfMemory, False),
    (Code.INTERNAL, "Failed to increase the shared memory pool size for key", errors.OutOfMemory, False),
    (Code.INTERNAL, "Stub process 'x_0_0' is not healthy.", errors.Interrupted, False),
    (Code.UNKNOWN, "", errors.ModelFailed, False),
    (Code.CANCELLED, "Channel closed!", errors.Interrupted, False),
]


@pytest.mark.parametrize(("code", "message", "error_class", "finished"), GRPC_STATUSES)
def test_each_status_of_triton_becomes_its_error(
    code: Code, message: str, error_class: type[Exception], finished: bool
) -> None:
    failure = translate_status(code, message)
    assert type(failure.error) is error_class
    assert failure.finished is finished


def test_an_unknown_shared_memory_region_is_reported_as_lost() -> None:
    assert translate_status(Code.NOT_FOUND, "Unable to find shared memory region: 'trireme-1'").lost_region


def test_the_error_of_a_model_shows_neither_traceback_nor_instance() -> None:
    message = (
        "Failed to process the request(s) for model instance 'a_b_0_0', message: ValueError: no\n\nAt:\n"
        "  /somewhere/model.py(7): execute\n"
    )
    assert translate_status(Code.INTERNAL, message).error.sentence == "model 'a_b' failed: ValueError: no"
