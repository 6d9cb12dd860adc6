"""Models in a real Triton that return the token of their request: an answer to another request is refused."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sm.errors import NotReady
from sm.metrics import MISMATCHED_ANSWERS
from sm.triton.inference_plan import REQUEST_TOKEN
from sm.triton.python_models import TOKENS
from sm.triton.transport import Transport
from tests.support.tritons import HEAD, DecoupledModel, Model, TritonProcess, prepare_triton

#: The lines that a team adds to its own Python model. A negative ``x`` is answered with another request's token.
TOKEN_HEAD = HEAD.replace("import triton", "import request_token\nimport triton").replace(
    "class TritonPythonModel:",
    """class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        return request_token.declare(config)
""",
)
EXECUTE = """
    def execute(self, requests):
        return [self.respond(request, request_token.tensors(request)) for request in requests]

    def respond(self, request, tokens):
        if tokens and tensor(request, "x").ravel()[0] < 0:
            tokens = [pb.Tensor(request_token.NAME, tokens[0].as_numpy() + 1)]
        return pb.InferenceResponse([pb.Tensor("y", self.answer(request)["y"]), *tokens])
"""
EXECUTE_DECOUPLED = """
    def execute(self, requests):
        for request in requests:
            sender, tokens = request.get_response_sender(), request_token.tensors(request)
            for outputs in self.answer(request):
                sender.send(pb.InferenceResponse([pb.Tensor("y", outputs["y"]), *tokens]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@dataclass(frozen=True)
class TokenModel(Model):
    head: str = TOKEN_HEAD

    def write(self, folder: Path) -> None:
        super().write(folder)
        shutil.copy(TOKENS, folder / "1")

    def execute(self) -> str:
        return EXECUTE


@dataclass(frozen=True)
class DecoupledTokenModel(DecoupledModel):
    head: str = TOKEN_HEAD

    def write(self, folder: Path) -> None:
        super().write(folder)
        shutil.copy(TOKENS, folder / "1")

    def execute(self) -> str:
        return EXECUTE_DECOUPLED


INPUTS, OUTPUTS = {"x": ("FP32", [-1])}, {"y": ("FP32", [-1])}
TOKEN_MODELS = {
    "batching": TokenModel('return {"y": tensor(request, "x") * 2}', INPUTS, OUTPUTS, max_batch_size=8),
    "plain": TokenModel('return {"y": tensor(request, "x") * 2}', INPUTS, OUTPUTS),
    "stream": DecoupledTokenModel(
        'yield from [{"y": tensor(request, "x") + n} for n in range(3)]', INPUTS, OUTPUTS
    ),
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    triton = prepare_triton(tmp_path_factory.mktemp("token"), [])
    for name, model in TOKEN_MODELS.items():
        model.write(triton.box.repository / name)
    triton.start()
    yield triton
    triton.stop()


@pytest.fixture
def transport(serving: TritonProcess) -> Iterator[Transport]:
    connected = Transport(serving.settings, serving.box)
    yield connected
    connected.close()


def row_of(*numbers: float) -> dict[str, Any]:
    return {"x": np.array([numbers], np.float32)}


@pytest.mark.parametrize("size", [3, 100_000], ids=["in the message", "through shared memory"])
def test_concurrent_callers_each_get_their_own_answer(transport: Transport, size: int) -> None:
    assert transport.metadata("batching").identifies_requests

    def infer_number(number: int) -> bool:
        inputs = row_of(*([number] * size))
        return bool((transport.infer("batching", inputs)["y"] == inputs["x"] * 2).all())

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(infer_number, range(1, 65)))


def test_clients_do_not_see_the_token(transport: Transport) -> None:
    assert set(transport.metadata("plain").outputs) == {"y"}
    assert set(transport.infer("plain", {"x": np.ones(2, np.float32)})) == {"y"}


def test_another_request_s_answer_is_a_503_and_counted(transport: Transport) -> None:
    mismatches_before = MISMATCHED_ANSWERS.value
    with pytest.raises(NotReady, match="answered another request"):
        transport.infer("batching", row_of(-1.0, 2.0))
    assert MISMATCHED_ANSWERS.value == mismatches_before + 1


def test_the_parts_of_a_stream_carry_the_token_too(transport: Transport) -> None:
    parts = [part["y"].tolist() for part in transport.stream("stream", {"x": np.ones(1, np.float32)})]
    assert parts == [[1.0], [2.0], [3.0]]


def test_a_caller_of_triton_s_own_port_gets_no_token(serving: TritonProcess) -> None:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [2.0]}]}
    url = f"http://127.0.0.1:{serving.box.http_port}/v2/models/plain/infer"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10) as response:
        outputs = json.load(response)["outputs"]
    assert [output["name"] for output in outputs] == ["y"]
    assert REQUEST_TOKEN not in json.dumps(outputs)
