"""Compare the two backends of Triton that can serve a graph of the CPU target, with its golden inputs.

The target's Python model runs each instance in a process of its own, on the engine that suits the processor.
Triton's own ONNX Runtime backend, where this server has it, runs the same ``model.onnx`` inside of Triton: no
bytes go to another process, but a crash ends Triton, and with it every model.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.json_format import MessageToDict

from sm.client.base import Triton
from sm.errors import CommandError, TriremeError
from sm.hardware import (
    TICKS_PER_S,
    anonymous_bytes,
    children,
    command_line,
    status_fields,
    with_descendants,
)
from sm.repository.links import link_model
from sm.repository.machine import Machine, find_server
from sm.repository.manifest import NAME, Manifest
from sm.repository.models import CONFIG
from sm.settings import Settings
from trireme_extensions.convert.onnx_cpu.engines import GOLDEN, Wanted
from trireme_tools.build.golden_answers import Golden, Mismatch
from trireme_tools.check.triton_server import triton
from trireme_tools.invoke import load_test
from trireme_tools.invoke.load_test import LoadTest, quantile
from trireme_tools.invoke.messages import InvokeReply
from trireme_tools.tune.tuning_box import MAX_REQUESTS, TunedModel, edit_backend

PYTHON, ONNX_RUNTIME = "python", "onnxruntime"
#: How many times less processor time an answer of the ONNX Runtime backend has to take, as a crash of it ends
#: Triton.
MIN_GAIN = 1.25
#: Callers at once for the rate; seconds of a measurement, and of the warm-up before it.
CALLERS, MEASURED_S, WARM_UP_S = 4, 4.0, 1.0


@dataclass(frozen=True)
class Answers:
    """The cost of one backend's answers, or the reason why it gave none."""

    backend: str
    fault: str = ""
    #: The median latency of a lone caller, in seconds; the answers in a second to :data:`CALLERS`.
    p50: float = 0.0
    rate: float = 0.0
    #: Seconds of processor time of an answer, of Triton and its processes together.
    processor: float = 0.0
    #: Bytes of their memory that no file backs.
    memory: int = 0

    def __str__(self) -> str:
        if self.fault:
            return f"backend {self.backend}: {self.fault}"
        return (
            f"backend {self.backend}: p50 {1000 * self.p50:.1f} ms, {self.rate:.1f}/s to {CALLERS} callers, "
            f"{1000 * self.processor:.1f} ms of processor time an answer, {self.memory / 2**20:.0f} MiB"
        )


def choose(answers: Sequence[Answers], present: str) -> str:
    """Return the backend that should serve the model; ``present`` if one of both gave no right answers.

    The Python model's is the better one unless the other is :data:`MIN_GAIN` times cheaper.
    """
    if any(each.fault for each in answers):
        working = [each.backend for each in answers if not each.fault]
        return PYTHON if working == [PYTHON] else present
    seconds = {each.backend: each.processor for each in answers}
    return ONNX_RUNTIME if seconds[ONNX_RUNTIME] * MIN_GAIN <= seconds[PYTHON] else PYTHON


def why_not(machine: Machine) -> str:
    """Say why this machine's Triton cannot run the ONNX Runtime backend; empty if it has it."""
    if machine.has_backend(ONNX_RUNTIME, ()):
        return ""
    return (
        f"backend {ONNX_RUNTIME}: not available, {machine.backends} does not have it; "
        "an image with NVIDIA's Triton does."
    )


def measure(model: TunedModel, version: Path, manifest: Manifest, settings: Settings) -> list[Answers]:
    """Serve one version on each backend, the Python model's first, each in a Triton of its own.

    Args:
        model: What the client calls; its ``config.pbtxt`` counts, but for the backend.
        version: The version folder, with golden data.
        manifest: What it says of the Python model's engines counts, and not the version's own.
        settings: Which Triton.
    """
    return [_measure(model, version, manifest, settings, backend) for backend in (PYTHON, ONNX_RUNTIME)]


def _measure(
    model: TunedModel, version: Path, manifest: Manifest, settings: Settings, backend: str
) -> Answers:
    with tempfile.TemporaryDirectory(prefix="trireme-tune-") as folder:
        repository = Path(folder)
        _serve_one(model, version, manifest, backend, repository)
        try:
            with triton((model.name,), repository, settings) as transport:
                return _load(transport, model, version, settings, backend)
        except (CommandError, TriremeError, Mismatch) as error:
            return Answers(backend, str(error).removesuffix("."))


def _serve_one(model: TunedModel, version: Path, manifest: Manifest, backend: str, repository: Path) -> None:
    """Fill a repository with links to one version of the model, with another configuration and manifest."""
    folder = repository / model.name
    link_model(model.file.parent, folder, is_opened=version.name.__eq__, left_out=(NAME,))
    for other in folder.iterdir():
        if other.name.isdecimal() and other.name != version.name:
            other.unlink()
    (folder / CONFIG).unlink()
    (folder / CONFIG).write_text(edit_backend(model.text, backend))
    manifest.write(folder / version.name)


def _load(transport: Triton, model: TunedModel, version: Path, settings: Settings, backend: str) -> Answers:
    """Compare all golden answers, then measure with the inputs of the first."""
    golden = Golden.read(version / GOLDEN)
    tolerance = Wanted.read(MessageToDict(model.config, preserving_proto_field_name=True), {}).tolerance
    for index, (feed, expected) in enumerate(zip(golden.feeds, golden.answers, strict=True)):
        golden.compare(index, transport.infer(model.name, feed, outputs=list(expected)), tolerance)
    feed, names = golden.feeds[0], list(golden.answers[0])

    def ask() -> InvokeReply:
        transport.infer(model.name, feed, outputs=names)
        return InvokeReply(200, "", b"")

    server = str(find_server(settings))
    pid = next(child for child in children(os.getpid()) if command_line(child)[0] == server)
    _send(ask, CALLERS, WARM_UP_S)
    alone = _send(ask, 1, MEASURED_S)
    before = _processor_seconds(pid)
    together = _send(ask, CALLERS, MEASURED_S)
    spent = _processor_seconds(pid) - before
    count = len(together.latencies)
    return Answers(
        backend,
        p50=quantile(sorted(alone.latencies), 0.5),
        rate=count / together.seconds,
        processor=spent / count,
        memory=sum(map(anonymous_bytes, with_descendants(pid))),
    )


def _send(ask: Callable[[], InvokeReply], callers: int, seconds: float) -> LoadTest:
    load = load_test.measure(ask, MAX_REQUESTS, callers, seconds)
    if load.interrupted:
        raise KeyboardInterrupt
    return load


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a process and all below it."""
    fields = map(status_fields, with_descendants(pid))
    return sum(int(field) for each in fields for field in each[11:13]) / TICKS_PER_S
