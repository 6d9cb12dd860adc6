"""Start a real Triton with small python models, stop it and kill it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sm.models.table import Models
from sm.repository import models
from sm.router.invocation_routes import Router
from sm.run_state import Box
from sm.server.supervisor import ports
from sm.settings import Settings
from sm.triton import server, shared_memory_cleanup
from tests.support.other_triton import OTHER_TRITON

#: Creates the router of a worker.
CreateRouter = Callable[[Settings, Box, Models], Router]

TRITON_TIMEOUT_S = 60.0
#: In fp32, because tests compare exact digits.
SETTINGS = Settings.read({"TRIREME_PRECISION": "fp32", **OTHER_TRITON})

HEAD = """
import os, time
import numpy as np
import triton_python_backend_utils as pb


def tensor(request, name):
    return pb.get_input_tensor_by_name(request, name).as_numpy()


def response(outputs):
    return pb.InferenceResponse([pb.Tensor(name, value) for name, value in outputs.items()])


class TritonPythonModel:
    def initialize(self, args):
        # A box gives Triton links to the model's files.
        self.folder = os.path.dirname(os.path.realpath(__file__)) + "/../../../notes"
"""


EXECUTE = """
    def execute(self, requests):
        return [response(self.answer(request)) for request in requests]
"""

#: Writes a note when it sees that the request was cancelled.
EXECUTE_DECOUPLED = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for outputs in self.answer(request):
                if sender.is_cancelled():
                    open(self.folder + "/cancelled", "w").close()
                    break
                sender.send(response(outputs) if isinstance(outputs, dict) else outputs)
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


#: Goes on after its request was cancelled.
EXECUTE_STUBBORN = EXECUTE_DECOUPLED.replace("if sender.is_cancelled():", "if False:")
#: Answers each request in a thread of its own.
EXECUTE_PARALLEL = f"""{EXECUTE_DECOUPLED.replace("def execute(", "def answer_all(")}
    def execute(self, requests):
        import threading
        for request in requests:
            threading.Thread(target=self.answer_all, args=([request],)).start()
"""
Tensors = dict[str, tuple[str, list[int]]]


@dataclass(frozen=True)
class Model:
    """A model of Triton's python backend.

    Attributes:
        answer: The body of a function of ``request`` that returns the outputs by name; of a decoupled model it
            yields any number of outputs or of responses.
        inputs: Datatype and shape of each input.
        outputs: Datatype and shape of each output.
        max_batch_size: 0: no batching.
        head: The source before that function.
        execute: The source of ``execute``, which calls it.
    """

    answer: str
    inputs: Tensors
    outputs: Tensors
    max_batch_size: int = 0
    head: str = HEAD
    execute: str = EXECUTE
    decoupled: bool = False

    def write(self, folder: Path) -> None:
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(self.config())
        body = "\n".join(f"        {line}" for line in self.answer.strip().splitlines())
        source = f"{self.head}\n    def answer(self, request):\n{body}\n{self.execute}"
        (folder / "1" / "model.py").write_text(source)

    def config(self) -> str:
        def listed(tensors: Tensors) -> str:
            rows = [(name, kind, json.dumps(dims)) for name, (kind, dims) in tensors.items()]
            return ", ".join('{{name: "{}", data_type: TYPE_{}, dims: {}}}'.format(*row) for row in rows)

        return (
            f'backend: "python"\nmax_batch_size: {self.max_batch_size}\n'
            f"input [{listed(self.inputs)}]\noutput [{listed(self.outputs)}]\n"
            + ("dynamic_batching {}\n" if self.max_batch_size else "")
            + ("model_transaction_policy {decoupled: true}\n" if self.decoupled else "")
        )


DecoupledModel = partial(Model, execute=EXECUTE_DECOUPLED, decoupled=True)
StubbornModel = partial(Model, execute=EXECUTE_STUBBORN, decoupled=True)
ParallelModel = partial(Model, execute=EXECUTE_PARALLEL, decoupled=True)


#: Yields texts of ``size`` bytes for ``seconds``, as fast as it can.
TORRENT = """
text = b"x" * int(tensor(request, "size")[0])
end = time.monotonic() + float(tensor(request, "seconds")[0])
while time.monotonic() < end:
    yield {"text": np.array([text], dtype=object)}
"""

#: Writes 7s to its output, but only after so many seconds, or once there is a note ``go-on`` if they are negative.
#: It leaves notes on what it saw of cancellation.
SLOW = """
seconds, size = float(tensor(request, "seconds")[0, 0]), int(tensor(request, "size")[0, 0])
if request.is_cancelled():
    open(self.folder + "/skipped", "w").close()
    return {"y": np.zeros((1, size), np.float32)}
open(self.folder + "/began", "w").close()
end = time.monotonic() + seconds
while time.monotonic() < end or (seconds < 0 and not os.path.exists(self.folder + "/go-on")):
    time.sleep(0.02)
open(self.folder + ("/cancelled" if request.is_cancelled() else "/finished"), "w").close()
return {"y": np.full((1, size), 7, np.float32)}
"""

#: Counts to ``count`` with a pause of ``seconds`` before each number but the first; fails at 13. With a negative rest it waits for
#: a note ``go-on``.
COUNTS = """
for number in range(int(tensor(request, "count")[0])):
    rest = float(tensor(request, "seconds")[0]) if number else 0
    while rest < 0 and not os.path.exists(self.folder + "/go-on"):
        time.sleep(0.02)
    time.sleep(max(0, rest))
    if number == 13:
        raise ValueError("no such luck")
    yield {"number": np.array([number])}
"""

NUMBERS: tuple[Tensors, Tensors] = {"x": ("FP32", [-1])}, {"y": ("FP32", [-1])}
STREAMED: tuple[Tensors, Tensors] = (
    {"size": ("INT64", [1]), "seconds": ("FP32", [1])},
    {"text": ("STRING", [1])},
)
MODELS: dict[str, Model] = {
    "echo": Model('return {"y": tensor(request, "x")}', *NUMBERS, max_batch_size=8),
    # Takes as many megabytes of memory as the request asks for.
    "greedy": Model(
        'held = b"x" * (int(tensor(request, "x")[0, 0]) * 2**20)\n'
        'return {"y": np.full((1, 3), len(held) / 2**20, np.float32)}',
        *NUMBERS,
        max_batch_size=8,
    ),
    "fixed": Model(
        'return {"y": tensor(request, "x") * 2}',
        {"x": ("FP32", [100_000])},
        {"y": ("FP32", [100_000])},
        max_batch_size=4,
    ),
    "slow": Model(
        SLOW, {"seconds": ("FP32", [1]), "size": ("INT64", [1])}, {"y": ("FP32", [-1])}, max_batch_size=1
    ),
    # The size of the output depends on the input's value, not on its shape.
    "ones": Model(
        'return {"y": np.ones(int(tensor(request, "size")[0]), np.float32)}',
        {"size": ("INT64", [1])},
        {"y": ("FP32", [-1])},
    ),
    "counts": DecoupledModel(
        COUNTS, {"count": ("INT64", [1]), "seconds": ("FP32", [1])}, {"number": ("INT64", [1])}
    ),
    "torrent": DecoupledModel(TORRENT, *STREAMED),
    "stubborn": StubbornModel(TORRENT, *STREAMED),
    "refuses": DecoupledModel(
        'yield pb.InferenceResponse([], error=pb.TritonError("not this one", pb.TritonError.INVALID_ARG))',
        {"x": ("FP32", [1])},
        {"y": ("FP32", [1])},
    ),
    "raises": Model('raise ValueError("no such luck")', *NUMBERS),
    "positive": Model(
        'return {"y": tensor(request, "x") > 0, "x": tensor(request, "x")}',
        {"x": ("FP32", [-1])},
        {"y": ("BOOL", [-1]), "x": ("FP32", [-1])},
    ),
    "identity": Model(
        'return {"y": np.array([request.request_id()], dtype=object)}',
        {"x": ("FP32", [1])},
        {"y": ("STRING", [1])},
    ),
    "words": Model(
        'return {"y": np.array([w.decode().upper() for w in tensor(request, "x").ravel()], dtype=object)}',
        {"x": ("STRING", [-1])},
        {"y": ("STRING", [-1])},
    ),
}


#: A request of the v2 protocol for ``echo``.
ECHO_REQUEST: dict[str, Any] = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]
}
ECHO_BODY = json.dumps(ECHO_REQUEST).encode()


@dataclass
class TritonProcess:
    """A Triton process with ports of its own. It keeps them when it is started again after :meth:`kill`."""

    box: Box
    settings: Settings = SETTINGS
    process: subprocess.Popen[bytes] | None = None
    notes: Path = field(init=False)

    def __post_init__(self) -> None:
        self.notes = self.box.repository.parent / "notes"
        self.notes.mkdir(exist_ok=True)

    def start(self) -> None:
        """Start Triton and wait until it is ready."""
        self.launch()
        end = time.monotonic() + TRITON_TIMEOUT_S
        while not server.is_healthy(self.box.http_port):
            assert self.process is not None
            assert self.process.poll() is None, "Triton ended"
            assert time.monotonic() < end, f"Triton is not ready: {server.failures(self.box.http_port)}"
            time.sleep(0.05)

    def launch(self) -> None:
        command = server.command(self.settings, self.box, os.environ)
        with (self.box.run / "triton.log").open("ab") as log:
            self.process = subprocess.Popen(
                command.arguments, env=command.environment, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Kill Triton, its stubs and their files in shared memory, as a crash and a clean-up would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        # Kills the stubs: they are in Triton's process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        shared_memory_cleanup.remove_files(f"trireme-{self.box.id}-py")

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(TRITON_TIMEOUT_S)

    def shared_memory_files(self) -> list[str]:
        """Return the names of this box's files in shared memory, without the python backend's."""
        mine = f"trireme-{self.box.id}-"
        return sorted(
            path.name for path in Path("/dev/shm").glob(f"{mine}*") if not path.name.startswith(f"{mine}py")
        )


CACHE = "response_cache {enable: true}\n"


def cached_ensemble(part: Path) -> str:
    """Return the configuration of an ensemble that asks for the cache, with the tensors of its one step."""
    step = models.Model.read(part).config
    assert step is not None
    around = type(step)(platform="ensemble", max_batch_size=step.max_batch_size)
    around.input.extend(step.input)
    around.output.extend(step.output)
    scheduled = around.ensemble_scheduling.step.add(model_name=part.name, model_version=-1)
    scheduled.input_map.update({tensor.name: tensor.name for tensor in step.input})
    scheduled.output_map.update({tensor.name: tensor.name for tensor in step.output})
    return f"{models.write_config(around)}{CACHE}"


def prepare_triton(folder: Path, models: list[str], shared_bytes: int = 256 * 2**20) -> TritonProcess:
    """Prepare a Triton with some of :data:`MODELS`; the caller starts it."""
    (folder / "run").mkdir()
    repository = folder / "repository"
    for name in models:
        MODELS[name].write(repository / name)
    drawn = ports.choose_ports(SETTINGS)
    return TritonProcess(
        Box(f"test{os.urandom(4).hex()}", folder / "run", repository, *drawn, "nginx", shared_bytes)
    )
