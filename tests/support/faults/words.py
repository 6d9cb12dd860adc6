"""Triton's own words in every place that a caller or a model can write, and texts that make patterns slow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.support.tritons import HEAD, DecoupledModel, Model

#: What Triton, gRPC and the backends say, whole and in part, of the model ``says``.
PHRASES = (
    "in a not-ready state",
    "Request for unknown model: 'says' version 1 is not at ready state",
    "Request for unknown model: 'says' is not found",
    "Request for unknown model: 'says' has no available versions",
    "unknown model",
    "Unknown model size 'foo'",
    "Exceeds maximum queue size",
    "maximum queue size",
    "Request timeout expired",
    "Unable to find shared memory region: 'trireme-1'",
    "shared memory size specified with the request for output 'y' (8 bytes) should be at least 80 bytes to hold the results",
    "failed to connect to all addresses",
    "Socket closed",
    "Server exiting",
    "Stub process 'says_0' is not healthy.",
    "Failed to obtain the health mutex.",
    "CUDA error: out of memory",
    "out of memory",
    "MemoryError",
    "bad_alloc",
    "Failed to increase the shared memory pool size for key 'x'",
    "Unable to parse 'data': attempt to access JSON non-array as array",
    "Failed to process the request(s) for model 'says_0', message: MemoryError: x",
    "in ensemble 'e', Stub process 'says_0' is not healthy.",
    "[request id: x] Exceeds maximum queue size",
    "x] Exceeds maximum queue size",
)
#: Its input ``x`` says how it fails and with which words: ``exception|words``, or a code of Triton's.
FAIL = """
how, _, words = tensor(request, "x").ravel()[0].decode().partition("|")
with open({calls!r}, "a") as file:
    file.write(".")
if how in ("Exception", "MemoryError"):
    raise {{"Exception": Exception, "MemoryError": MemoryError}}[how](words)
"""
TEXT = {"x": ("STRING", [-1])}, {"y": ("STRING", [-1])}
RESPOND = """
def response(outputs):
    return pb.InferenceResponse(error=pb.TritonError(*outputs))
"""


#: A client of ``says``.
CLIENT = """
import numpy as np
from sm.client import TensorClient, TextPayload


class Client(TensorClient):
    payload, model, repeatable = TextPayload, "says", {repeatable}

    def preprocess(self, payload):
        return {{"x": np.array([payload.text.encode()], object)}}

    def postprocess(self, outputs, payload):
        return len(outputs["y"])
"""


def write_models(folder: Path) -> None:
    """Write what fails as it is asked and notes each call in ``calls``.

    In ``model`` are ``says`` and the decoupled ``streams``, in ``clients`` two of ``says``: ``many`` and ``once``,
    which may not be repeated.
    """
    repository, calls = folder / "model", folder / "calls"
    calls.touch()
    head = HEAD.replace("\n\nclass Triton", f"\n{RESPOND}\n\nclass Triton", 1)
    fail = FAIL.format(calls=str(calls))
    Model(fail + "return words, getattr(pb.TritonError, how)", *TEXT, head=head).write(repository / "says")
    DecoupledModel(
        fail + "yield pb.InferenceResponse(error=pb.TritonError(words, getattr(pb.TritonError, how)))", *TEXT
    ).write(repository / "streams")
    for name in ("many", "once"):
        (folder / "clients" / name).mkdir(parents=True)
        source = CLIENT.format(repeatable=name == "many")
        (folder / "clients" / name / "client.py").write_text(source)


#: What protocols have: brackets, quotes, slashes, digits, white space, and keys with what follows them.
UNITS = (
    *"[]{}()<>\"'`\\/|,;:.=-+_#%&?*^$@!~0129aZ \t\n\r\0",
    *("\\u0073", "\\\\", '\\"', "1,", "9,", "[1],", '{"', '":', '"shape":[', '"shape" : [1,'),
    *('"\\u0073hape":', '"shape":[1],', '"data":[', '"inputs":[{', '"outputs":', '"id":"', '"name":"'),
    *('"parameters":{', '"modelname":"', '"payload":', '"text":"', '"image":"', '"requestType":'),
    *('"s3_uri":"', "/trireme-abcdefgh/", "trireme-a", "triton_python_backend_shm", "[request id: ", "] "),
    *("in ensemble 'a', ", "Failed to process the request(s) for model '", "', message: ", "data: "),
    *("data: {}\n\n", "http://", "s3://", "é", "\ufeff", "a=b;", "tiff:Orientation=", "RIFF", "\x1b["),
)
#: Before and after the repeated unit: as it is, and inside of JSON that is otherwise right.
FRAMES = (
    ("", ""),
    ('{"inputs":', ""),
    ('{"modelname":"says","payload":{"text":"', '"}}'),
    ('{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["', '"]}]}'),
    ('{"id":"', '","inputs":[{"name":"x","datatype":"BYTES","shape":[5],"data":["a"]}]}'),
)


def long_texts(size: int) -> Iterator[tuple[str, str]]:
    """Yield texts of about ``size`` characters, each of one unit, with their names."""
    for unit in UNITS:
        for before, after in FRAMES:
            yield f"{before[:20]!r} and {unit!r}", before + unit * (size // len(unit)) + after
