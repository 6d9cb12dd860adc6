"""The benchmark's contestants on a machine with a GPU. All serve the same programs, from the same graphs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import requests

from bench.contestant import PROCESSES, Contestant, Request
from bench.contestants.floors import SharedMemory
from bench.contestants.peers import FastApi
from bench.contestants.reference import Reference
from bench.contestants.trireme import Trireme
from bench.gpu.stages import Context
from bench.serving import triton

#: FastAPI's workers, each with all models on the GPU. More would not fit into its memory.
WORKERS = min(PROCESSES, 8)


class OnGpu(Contestant):
    """What all contestants share: the folders, and what their answers contain."""

    def __init__(self, context: Context, port: int, folder: Path) -> None:
        super().__init__(port, "real", folder, context.files)
        self.context = context
        self._expected: dict[str, bytes] = {}

    def environment(self) -> dict[str, str]:
        plain = str(self.context.plain)
        return {**super().environment(), "GPU_PLAIN": plain, "BENCH_REPOSITORY": plain}

    def request(self, model: str, form: str) -> Request | None:
        """Expect the label of the first answer: that of random weights is not the sample's."""
        request = super().request(model, form)
        if request is None:
            return None
        if model not in self._expected:
            self._expected[model] = first_word(request, self.port)
        return replace(request, expected=self._expected[model])


def first_word(request: Request, port: int) -> bytes:
    """Return the label of the best answer; nothing where it cannot be found in the answer's bytes."""
    url = f"http://127.0.0.1:{port}{request.path}"
    response = requests.post(url, data=request.body, headers=dict(request.headers), timeout=60)
    response.raise_for_status()
    result = response.json()
    rows = result["result"] if isinstance(result, dict) else result
    first_row = rows[0] if rows else ""
    if isinstance(first_row, dict):
        first_row = next((value for value in first_row.values() if isinstance(value, str)), "")
    word = str(first_row).rpartition(":")[2]
    return word.encode() if word.isascii() and '"' not in word else b""


class Box(OnGpu, Trireme):
    name = "trireme"

    def repository(self) -> object:
        return self.context.repository


class ReferenceBox(OnGpu, Reference):
    name = "reference"


class FastApiBox(OnGpu, FastApi):
    name = "fastapi"
    about = f"FastAPI on uvicorn, {WORKERS} workers, the programs in each of them, no batching"
    service = "bench.gpu.fastapi_service:create"
    workers = WORKERS

    def prepare(self) -> None:
        """Do nothing: its packages are in the bundle."""

    @property
    def python(self) -> Path:
        return Path(sys.executable)


class BareTriton(OnGpu, SharedMemory):
    name = "triton"

    def prepare(self) -> None:
        # Not self.environment(), which needs the command made here.
        variables = Contestant.environment(self)
        self._command, self.box = triton(self.folder, self.context.repository, variables)

    def tensors(self) -> Path:
        return self.files / "box"


CONTESTANTS: dict[str, type[OnGpu]] = {
    contestant.name: contestant for contestant in (Box, ReferenceBox, FastApiBox, BareTriton)
}
