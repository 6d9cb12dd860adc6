"""What Triton says when a call fails, in the words of 2.51 and 2.71, and what its caller gets."""

from __future__ import annotations

from typing import NamedTuple

from grpc import StatusCode as Code

from sm import errors
from sm.errors import (
    BadInput,
    DeadlinePassed,
    Interrupted,
    ModelFailed,
    OutOfMemory,
    Overloaded,
    UnknownModel,
)


class Said(NamedTuple):
    """A failed call of the model ``x``."""

    code: Code
    words: str
    kind: type[errors.TriremeError]
    #: True if Triton has finished the request.
    finished: bool
    #: The release that says it, if the other one has other words or does not say it.
    release: str = ""
    #: False if the status alone says what it is, which a stream does not have.
    words_suffice: bool = True


PYTHON = "Failed to process the request(s) for model 'x_0', message: "
NODE = "Non-zero status code returned while running Expand node. Name:'e' Status Message: bfc_arena.cc:376 "
NO_MEMORY = "Failed to allocate memory for requested buffer of size"
OUTGROWN = (
    "specified with the request for output 'y' (8 bytes) should be at least 80 bytes to hold the results"
)
SAID = (
    Said(Code.NOT_FOUND, "Request for unknown model: 'x' is not found", UnknownModel, True),
    Said(Code.NOT_FOUND, "Request for unknown model: 'x' version 7 is not found", UnknownModel, True),
    Said(Code.UNAVAILABLE, "Request for unknown model: 'x' version 1 is not at ready state", errors.Refused, True),
    Said(Code.NOT_FOUND, "Request for unknown model: 'x' has no available versions", UnknownModel, True),
    Said(Code.NOT_FOUND, "in ensemble 'e', Request for unknown model: 'y' is not found", UnknownModel, True),
    Said(Code.NOT_FOUND, "Request for unknown model : 'x' is not found", UnknownModel, True),
    Said(Code.INVALID_ARGUMENT, "unexpected inference output 'zz' for model 'x'", BadInput, True),
    Said(Code.INVALID_ARGUMENT, "InvalidArgument: [ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions", BadInput, True),
    Said(Code.INVALID_ARGUMENT, "output 'y' already exists in request", BadInput, True, "2.71"),
    Said(Code.INTERNAL, "Unable to parse 'data': Shape does not match true shape of 'data' field", BadInput, True, "2.51"),
    Said(Code.INTERNAL, "Failed to parse 'data' field: shape does not match true shape", BadInput, True, "2.71"),
    Said(Code.INVALID_ARGUMENT, "failed to register shared memory region 'r': invalid args", BadInput, True, "2.71"),
    Said(Code.INVALID_ARGUMENT, "Invalid stub name: contains invalid characters", BadInput, True, "2.71"),
    Said(Code.INVALID_ARGUMENT, "Model version not ready", BadInput, True, "2.71"),
    Said(Code.NOT_FOUND, "Unable to find shared memory region: 'r'", errors.NotReady, True),
    Said(Code.INTERNAL, f"shared memory size {OUTGROWN}", ModelFailed, True),
    Said(Code.UNAVAILABLE, "Server exiting", Interrupted, False),
    Said(Code.UNAVAILABLE, "Server shutdown", Interrupted, False, "up to 2.71"),
    Said(Code.UNAVAILABLE, "GRPC server is shutting down and has stopped accepting new requests.", Interrupted, False, "2.71"),
    Said(Code.UNAVAILABLE, "Exceeds maximum queue size", Overloaded, True),
    Said(Code.UNAVAILABLE, "Request timeout expired", DeadlinePassed, True),
    Said(Code.UNIMPLEMENTED, "no such operation", errors.Unsupported, True, words_suffice=False),
    Said(Code.DEADLINE_EXCEEDED, "Deadline Exceeded", DeadlinePassed, False, words_suffice=False),
    Said(Code.RESOURCE_EXHAUSTED, "too much", Overloaded, False, words_suffice=False),
    Said(Code.INTERNAL, "CUDA error: out of memory", OutOfMemory, False),
    Said(Code.INTERNAL, "Failed to increase the shared memory pool size for key", OutOfMemory, False),
    Said(Code.INTERNAL, f"in ensemble 'e', {PYTHON}MemoryError: <EMPTY MESSAGE>\n\nAt:\n  model.py(3): execute\n", OutOfMemory, False),
    Said(Code.INTERNAL, f"{PYTHON}OutOfMemoryError: CUDA out of memory. Tried", OutOfMemory, False),
    Said(Code.INTERNAL, f"{PYTHON}ValueError: no such luck", ModelFailed, True),
    Said(Code.INTERNAL, f"RuntimeException: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : {NODE}{NO_MEMORY} 17592186044416", OutOfMemory, False),
    Said(Code.INTERNAL, f"onnx runtime error 6: {NODE}{NO_MEMORY} 17179869184", OutOfMemory, False),
)  # fmt: skip
