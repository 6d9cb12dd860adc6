"""Models of this folder's shared Triton: every datatype, packages, and answers with the token of their request."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from sm.settings import PACKAGE
from sm.triton.tensors import DTYPES
from tests.support.tritons import HEAD, DecoupledModel, Model

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
        shutil.copy(PACKAGE / "triton" / "onnx_cpu" / "request_token.py", folder / "1")

    def execute(self) -> str:
        return EXECUTE


@dataclass(frozen=True)
class DecoupledTokenModel(TokenModel, DecoupledModel):
    def execute(self) -> str:
        return EXECUTE_DECOUPLED


INPUTS, OUTPUTS = {"x": ("FP32", [-1])}, {"y": ("FP32", [-1])}
#: Reads and writes every datatype.
REVERSE_EVERY_INPUT = """
assert all(isinstance(t, pb.Tensor) for t in request.inputs())
return {"of_" + t.name(): t.as_numpy()[::-1] for t in request.inputs()}
"""
FOLDER_MODELS: dict[str, Model] = {
    "typed": Model(
        REVERSE_EVERY_INPUT,
        {name: (name, [-1]) for name in DTYPES},
        {f"of_{name}": (name, [-1]) for name in DTYPES},
    ),
    "token_batching": TokenModel('return {"y": tensor(request, "x") * 2}', INPUTS, OUTPUTS, max_batch_size=8),
    "token_plain": TokenModel('return {"y": tensor(request, "x") * 2}', INPUTS, OUTPUTS),
    "token_stream": DecoupledTokenModel(
        'yield from [{"y": tensor(request, "x") + n} for n in range(3)]', INPUTS, OUTPUTS
    ),
}
