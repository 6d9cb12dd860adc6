"""The floors: the machine's, without a server, and the transport's, Triton alone with prepared tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bench import repositories
from bench.contestant import PROCESSES, READY, THREADS, Contestant
from bench.serving import triton
from sm.triton import server


class SharedMemory(Contestant):
    name = "triton"
    about = (
        "Triton by gRPC, ready tensors in shared memory, no picture decoded; its callers count as part of it"
    )
    asked_by_itself = True

    def prepare(self) -> None:
        repository = self.folder / "repository"
        make = repositories.box_instant if self.regime == "instant" else repositories.plain
        make(repository, self.files)
        self._command, self.box = triton(self.folder, repository, super().environment())

    def command(self) -> Sequence[str]:
        return self._command.arguments

    def environment(self) -> dict[str, str]:
        return dict(self._command.environment)

    def ready(self) -> bool:
        return server.is_healthy(self.box.http_port)

    def driver(self, model: str, form: str, callers: int, seconds: float) -> Sequence[str] | None:
        if form != READY:
            return None
        values = (self.box.grpc_port, model, self.tensors(), callers, seconds)
        return (sys.executable, "-m", "bench.callers", *map(str, values))

    def tensors(self) -> Path:
        """Return the folder of the tensors that the models take: the box's own, or everybody's."""
        return self.files / "box" if self.regime == "instant" else self.files


class Loop(Contestant):
    name = "loop"
    about = f"no server: {PROCESSES} processes do the work, each with {THREADS} thread of ONNX Runtime"
    asked_by_itself = True

    def command(self) -> Sequence[str]:
        return ()

    def driver(self, model: str, form: str, callers: int, seconds: float) -> Sequence[str] | None:
        del callers
        return (sys.executable, "-m", "bench.together", model, str(seconds)) if form == READY else None

    def callers(self, wanted: Sequence[int]) -> Sequence[int]:
        del wanted  # there is nobody but the processes
        return (PROCESSES,)
