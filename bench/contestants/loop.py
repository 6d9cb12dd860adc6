"""The lower bound of this machine: decode, preprocess, ONNX Runtime and postprocess without a server."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.contestant import PROCESSES, READY, THREADS, Contestant


class Loop(Contestant):
    name = "loop"
    about = f"no server: {PROCESSES} processes do the work, each with {THREADS} thread of ONNX Runtime"
    asked_by_itself = True

    def command(self) -> Sequence[str]:
        return ()

    def driver(self, model: str, form: str, callers: int, seconds: float) -> Sequence[str] | None:
        del callers
        return (sys.executable, "-m", "bench.loop", model, str(seconds)) if form == READY else None

    def callers(self, wanted: Sequence[int]) -> Sequence[int]:
        del wanted  # there is nobody but the processes
        return (PROCESSES,)
