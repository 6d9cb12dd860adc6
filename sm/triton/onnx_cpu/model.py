"""An ONNX graph in Triton's python backend: how the CPU target runs every model.

Copied into the model repository as ``<model>/1/model.py``, beside ``model.onnx``, ``engines.py`` and
``request_token.py``; so it imports nothing of the box. Parameters of ``config.pbtxt``: ``threads``, the
threads of each instance (its share of the cores at hand if not set), and ``engine``, ``precision`` and
``tolerance``, which ``engines.py`` reads.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import engines
import numpy as np
import request_token
import triton_python_backend_utils as triton

#: The CPU quota of a container, as "quota period" in microseconds, or "max period".
QUOTA = Path("/sys/fs/cgroup/cpu.max")
MAPS = Path("/proc/self/maps")
#: The box sets these: the cache, and the folder where each model says which engine runs it.
CACHE, CHOICES = "TRIREME_CACHE", "TRIREME_ENGINES"


class TritonPythonModel:
    """One instance: a process of its own with an engine of its own."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Declare the output that says which request an answer is for."""
        return request_token.declare(config)

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.batched = int(config.get("max_batch_size", 0)) > 0
        folder, count = Path(args["model_repository"]) / args["model_version"], threads(config)
        cache = os.environ.get(CACHE)
        wanted = engines.Wanted.read(config, os.environ)
        kept = Path(cache).expanduser() / engines.KEPT if cache else None
        choice = engines.Chooser(folder, count, wanted, kept).choose()
        self.engine, choice = engines.open_engine(choice, folder / engines.GRAPH, count, wanted.by_record)
        publish(choice, args["model_name"], args["model_version"])
        self.is_trimmed = False
        self.inputs, self.outputs = self.engine.inputs, self.engine.outputs

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request, in order."""
        responses: list[Any] = [None] * len(requests)
        alive = []
        for place, request in enumerate(requests):
            if request.is_cancelled():
                responses[place] = failed("the caller went away", triton.TritonError.CANCELLED)
            else:
                alive.append((place, request))
        for batch in [alive] if self.batched else [[each] for each in alive]:
            for place, response in self.answer(batch):
                responses[place] = response
        if not self.is_trimmed:
            self.is_trimmed = True
            trim()
        return responses

    def answer(self, placed: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """The requests as one run; where that fails, each alone, so that one cannot fail the others."""
        if not placed:
            return []
        try:
            responses = self.run([request for _, request in placed])
        except Exception as error:
            if len(placed) > 1:
                return [answer for each in placed for answer in self.answer([each])]
            # What the graph cannot take, such as a word that is not in its vocabulary, is the caller's.
            theirs = type(error).__name__ in ("InvalidArgument", "UnicodeDecodeError")
            code = triton.TritonError.INVALID_ARG if theirs else triton.TritonError.INTERNAL
            responses = [failed(f"{type(error).__name__}: {error}", code)]
        return list(zip((place for place, _ in placed), responses, strict=True))

    def run(self, requests: list[Any]) -> list[Any]:
        """Join the requests along the batch axis, run the graph once, and split the outputs."""
        tensors = [self.tensors(request) for request in requests]
        feed = {name: join([each[name] for each in tensors]) for name in self.inputs}
        wanted = [name for name in self.outputs if any(name in r.requested_output_names() for r in requests)]
        outputs = dict(zip(wanted, self.engine.run(wanted, feed), strict=True))
        if len(requests) == 1:
            return [self.response(requests[0], outputs)]
        ends = np.cumsum([each[self.inputs[0]].shape[0] for each in tensors])[:-1]
        parts = {name: np.split(output, ends) for name, output in outputs.items()}
        return [
            self.response(request, {name: parts[name][place] for name in wanted})
            for place, request in enumerate(requests)
        ]

    def tensors(self, request: Any) -> dict[str, Any]:
        return {name: text(triton.get_input_tensor_by_name(request, name).as_numpy()) for name in self.inputs}

    def response(self, request: Any, outputs: dict[str, Any]) -> Any:
        """A response with the outputs that this request asked for."""
        wanted = request.requested_output_names()
        tensors = [triton.Tensor(name, value) for name, value in outputs.items() if name in wanted]
        return triton.InferenceResponse(output_tensors=[*tensors, *request_token.tensors(request)])


def trim() -> None:
    """Give the memory back that reading the graph and packing its weights in the first run left unused.

    The box lets glibc keep up to 256 MB; see ``MALLOC`` in sm/triton/server.py. The file of the weights
    stays mapped, and what is needed of it again is read again.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc_trim(0)
        for line in MAPS.read_text().splitlines():
            if line.endswith(f"/{engines.WEIGHTS}") and " r--" in line:
                start, end = (int(address, 16) for address in line.split()[0].split("-"))
                size = ctypes.c_size_t(end - start)
                libc.madvise(ctypes.c_void_p(start), size, mmap.MADV_DONTNEED)


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
    level = "warning" if choice.faults and choice.speedup is None else "info"
    print(json.dumps({"level": level, "message": choice.describe(model)}), flush=True)  # noqa: T201


def threads(config: dict[str, Any]) -> int:
    """The parameter ``threads``, or the cores that this process may use, shared among the instances."""
    said = config.get("parameters", {}).get("threads", {}).get("string_value", "")
    instances = sum(group.get("count", 1) for group in config.get("instance_group", []))
    return int(said) if said else max(1, cores() // max(1, instances))


def cores() -> int:
    """Cores by affinity, and by the container's quota where there is one."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = QUOTA.read_text().split()
        return max(1, min(allowed, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return allowed


def join(tensors: list[Any]) -> Any:
    """Along the batch axis; a lone tensor as it is, without a copy."""
    return tensors[0] if len(tensors) == 1 else np.concatenate(tensors)


def text(array: Any) -> Any:
    """Texts as ONNX Runtime takes them, as ``str``; Triton gives their bytes. Numbers stay as they are."""
    if array.dtype != np.object_:
        return array
    decoded = [each.decode() for each in array.ravel()]
    return np.array(decoded, np.object_).reshape(array.shape)


def failed(reason: str, code: int) -> Any:
    """A response that is an error."""
    return triton.InferenceResponse(output_tensors=[], error=triton.TritonError(reason, code))
