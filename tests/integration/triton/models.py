"""Models of this folder's shared Triton: every datatype, tokens of requests, ONNX graphs, and a warm-up."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sm.triton.tensors import DTYPES
from tests.support.onnx_graphs import write_graph
from tests.support.tritons import HEAD, Model
from trireme_extensions.convert import onnx_cpu
from trireme_tools.prepare.cpu_repository import run_on_cpu

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
    execute: str = EXECUTE

    def write(self, folder: Path) -> None:
        super().write(folder)
        shutil.copy(Path(onnx_cpu.__file__).with_name("request_token.py"), folder / "1")


DecoupledTokenModel = partial(TokenModel, execute=EXECUTE_DECOUPLED, decoupled=True)


@dataclass(frozen=True)
class WarmModel(Model):
    """A model that is warmed up with one call."""

    def config(self) -> str:
        value = "{ data_type: TYPE_FP32 dims: 1 zero_data: true }"
        return f'{super().config()}model_warmup {{ name: "zeros" batch_size: 1 inputs {{ key: "x" value {value} }} }}\n'


#: ``at`` picks one of four rows. An index over 3 fails inside ONNX Runtime. ``twice`` is 2 * ``at``.
PICK = """(int64[{batch}1] at) => (float[{batch}1,3] row, int64[{batch}1] twice)
<float[4,3] rows = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}, int64[1] two = {{2}}> {{
    row = Gather(rows, at)
    twice = Mul(at, two)
}}"""
PICK_CONFIG = """
input [ { name: "at" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "row" data_type: TYPE_FP32 dims: [ 1, 3 ] }, { name: "twice" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""
#: ``text`` and ``other`` to the first, and whether they are equal.
SAME_TEXT = """(string[{batch}1] text, string[{batch}1] other) => (string[{batch}1] echo, bool[{batch}1] equal)
{{ echo = Identity(text) equal = Equal(text, other) }}"""
SAME_TEXT_CONFIG = """
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] }, { name: "other" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "echo" data_type: TYPE_STRING dims: [ 1 ] }, { name: "equal" data_type: TYPE_BOOL dims: [ 1 ] } ]
"""
#: Half a second is enough to join eight callers into one batch.
BATCHED = (
    "max_batch_size: 8\ndynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 500000 }\n"
)
TWO_INSTANCES = (
    'instance_group [ { count: 2 } ]\nparameters [ { key: "threads" value: { string_value: "1" } } ]\n'
)


@dataclass(frozen=True)
class GraphModel:
    """An ONNX graph, completed as the set-up does it for the CPU target."""

    options: str = ""
    graph: str = PICK
    tensors: str = PICK_CONFIG

    def write(self, folder: Path) -> None:
        text = self.graph.format(batch="b," if self.options else "")
        write_graph(folder / "1" / "model.onnx", text, opset=19)
        config = folder / "config.pbtxt"
        config.write_text(f'name: "{folder.name}"\n{self.options}{self.tensors}')
        run_on_cpu(folder, config, "a test")


INPUTS, OUTPUTS = {"x": ("FP32", [-1])}, {"y": ("FP32", [-1])}
#: Reads and writes every datatype.
REVERSE_EVERY_INPUT = """
assert all(isinstance(t, pb.Tensor) for t in request.inputs())
return {"of_" + t.name(): t.as_numpy()[::-1] for t in request.inputs()}
"""
#: Takes a second, and leaves a file beside the model when it is done.
SLOW_CALL = """
time.sleep(1)
open(__file__ + ".done", "w").close()
return {"y": tensor(request, "x")}
"""
FOLDER_MODELS: dict[str, Model | GraphModel] = {
    "typed": Model(
        REVERSE_EVERY_INPUT,
        {name: (name, [-1]) for name in DTYPES},
        {f"of_{name}": (name, [-1]) for name in DTYPES},
    ),
    "token": TokenModel('return {"y": tensor(request, "x") * 2}', INPUTS, OUTPUTS, max_batch_size=8),
    "token_stream": DecoupledTokenModel(
        'yield from [{"y": tensor(request, "x") + n} for n in range(3)]', INPUTS, OUTPUTS
    ),
    "warm": WarmModel(SLOW_CALL, INPUTS, OUTPUTS),
    "batched": GraphModel(BATCHED),
    "single": GraphModel(),
    "threaded": GraphModel(BATCHED + TWO_INSTANCES),
    "same_text": GraphModel("max_batch_size: 8\n", SAME_TEXT, SAME_TEXT_CONFIG),
}
