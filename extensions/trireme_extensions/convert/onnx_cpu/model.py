"""An ONNX graph in Triton's python backend: how the CPU target runs every model.

Copied into the model repository as ``<model>/1/model.py``, beside ``model.onnx``, ``engines.py``,
``batching.py`` and ``request_token.py``; so it imports nothing of the box. Parameters of ``config.pbtxt``:
``threads``, the threads of each instance (its share of the cores at hand if not set), and ``engine``,
``precision`` and ``tolerance``, which ``engines.py`` reads.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import batching
import engines
import numpy as np

MAPS = Path("/proc/self/maps")
#: The box sets these: the cache, and the folder where each model says which engine runs it.
CACHE, CHOICES = "TRIREME_CACHE", "TRIREME_ENGINES"


class TritonPythonModel(batching.BatchingModel):  # type: ignore[misc]
    """One instance: a process of its own with an engine of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.batched = int(config.get("max_batch_size", 0)) > 0
        folder, count = Path(args["model_repository"]) / args["model_version"], batching.threads(config)
        cache = os.environ.get(CACHE)
        wanted = engines.Wanted.read(config, os.environ)
        kept = Path(cache).expanduser() / engines.KEPT if cache else None
        choice = engines.Chooser(folder, wanted, kept).choose()
        self.engine, choice = engines.open_engine(choice, folder / engines.GRAPH, count, wanted.by_record)
        publish(choice, args["model_name"], args["model_version"])
        self.is_trimmed = False
        self.inputs, self.outputs = self.engine.inputs, self.engine.outputs

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request, in order."""
        responses: list[Any] = super().execute(requests)
        if not self.is_trimmed:
            self.is_trimmed = True
            trim()
        return responses

    def compute(self, feed: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
        return dict(zip(wanted, self.engine.run(wanted, feed), strict=True))

    def is_callers_fault(self, error: Exception) -> bool:
        return type(error).__name__ in ("InvalidArgument", "UnicodeDecodeError")

    def tensors(self, request: Any) -> dict[str, Any]:
        return {name: text(array) for name, array in super().tensors(request).items()}


def trim() -> None:
    """Give the memory back that reading the graph and packing its weights in the first run left unused.

    The box lets glibc keep up to 256 MB; see ``MALLOC`` in sm/triton/server.py. The file of the weights
    stays mapped, and what is needed of it again is read again.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc_trim(0)
        for start, end in find_weights(MAPS.read_bytes()):
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def find_weights(maps: bytes) -> Iterator[tuple[int, int]]:
    """Yield the addresses of the weights' file in ``/proc/self/maps``, whose paths may have any bytes."""
    for line in maps.splitlines():
        if line.endswith(f"/{engines.WEIGHTS}".encode()) and b" r--" in line:
            start, end = (int(address, 16) for address in line.split()[0].split(b"-"))
            yield start, end


def publish(choice: engines.Choice, model: str, version: str) -> None:
    """Say in the log and in a file which engine runs the model: the first of its instances does."""
    folder = os.environ.get(CHOICES)
    if folder:
        try:
            with (Path(folder) / f"{model}.{version}.json").open("x") as file:
                json.dump({"model": model, "version": version, **asdict(choice)}, file)
        except OSError:
            return
    # A candidate that was tried and left out is an ordinary result.
    level = "warning" if choice.lacks else "info"
    print(json.dumps({"level": level, "message": choice.describe(model)}), flush=True)  # noqa: T201


def text(array: Any) -> Any:
    """Texts as ONNX Runtime takes them, as ``str``; Triton gives their bytes. Numbers stay as they are."""
    if array.dtype != np.object_:
        return array
    decoded = [each.decode() for each in array.ravel()]
    return np.array(decoded, np.object_).reshape(array.shape)
