"""The benchmark's contestants on a machine with a GPU. All serve the same programs, from the same graphs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.contestant import PROCESSES, Contestant, Regime, Request
from bench.contestants.fastapi import FastApi
from bench.contestants.reference import Reference
from bench.contestants.trireme import Trireme
from bench.contestants.triton import SharedMemory
from bench.gpu.stages import Context
from bench.samples import Sample
from bench.serving import triton

#: FastAPI's workers, each with all models on the GPU. More would not fit into its memory.
WORKERS = min(PROCESSES, 8)


class OnGpu(Contestant):
    """What all contestants share: the folders, and a picture that may replace the sample."""

    picture: Sample | None = None

    def __init__(self, context: Context, port: int, folder: Path) -> None:
        regime: Regime = "real"
        super().__init__(port, regime, folder, context.files)
        self.context = context

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.extra_variables()}

    def extra_variables(self) -> dict[str, str]:
        """Variables that a process on this machine needs in addition to a contestant's."""
        return {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "GPU_PLAIN": str(self.context.plain)}

    def sample(self, model: str) -> Sample:
        return self.picture or super().sample(model)


class Box(OnGpu, Trireme):
    name = "trireme"
    about = "this box with its defaults, but TRIREME_QUEUE=128"

    def repository(self) -> object:
        return self.context.repository


class ReferenceBox(OnGpu, Reference):
    name = "reference"

    def command(self) -> Sequence[str]:
        return (sys.executable, "-m", "bench.gpu.reference")

    def request(self, model: str, form: str) -> Request | None:
        request = super().request(model, form)
        if request is None or self.picture is None:
            return request
        import json

        body = json.dumps({"modelname": model, "payload": {"image": self.picture.base64}}).encode()
        return Request(request.path, request.headers, body, request.expected)


class FastApiBox(OnGpu, FastApi):
    name = "fastapi"
    about = f"FastAPI on uvicorn, {WORKERS} workers, the programs in each of them, no batching"

    def prepare(self) -> None:
        """Do nothing: its packages are in the bundle."""

    def command(self) -> Sequence[str]:
        return (
            *(sys.executable, "-m", "uvicorn", "--factory", "bench.gpu.fastapi_service:create"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--workers", str(WORKERS)),
            *("--no-access-log", "--log-level", "warning"),
        )


class BareTriton(OnGpu, SharedMemory):
    name = "triton"

    def prepare(self) -> None:
        # Not self.environment(), which needs the command made here.
        variables = {**Contestant.environment(self), **self.extra_variables()}
        self._command, self._box = triton(self.folder, self.context.repository, variables)

    def environment(self) -> dict[str, str]:
        return {**dict(self._command.environment), "BENCH_FOLDER": str(self.folder)}

    def driver(self, model: str, form: str, callers: int, seconds: float) -> Sequence[str] | None:
        if form != "ready":
            return None
        values = (self._box.grpc_port, model, self.files / "box", callers, seconds)
        return (sys.executable, "-m", "bench.callers", *map(str, values))


CONTESTANTS: dict[str, type[OnGpu]] = {
    "trireme": Box,
    "reference": ReferenceBox,
    "fastapi": FastApiBox,
    "triton": BareTriton,
}
