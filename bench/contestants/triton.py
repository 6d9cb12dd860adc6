"""The lower bound of the transport: Triton alone over gRPC, with prepared tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench import repositories
from bench.contestant import READY, Contestant
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
        self._command, self._box = triton(self.folder, repository, super().environment())

    def command(self) -> Sequence[str]:
        return self._command.arguments

    def environment(self) -> dict[str, str]:
        return dict(self._command.environment)

    def ready(self) -> bool:
        return server.ready(self._box.http_port)

    def driver(self, model: str, form: str, callers: int, seconds: float) -> Sequence[str] | None:
        if form != READY:
            return None
        # The tensors are those that the model takes: the box's own, or everybody's.
        recorded = self.files / "box" if self.regime == "instant" else self.files
        values = (self._box.grpc_port, model, recorded, callers, seconds)
        return (sys.executable, "-m", "bench.callers", *map(str, values))
