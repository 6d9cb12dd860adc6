"""Replace Triton's messages about a missing GPU by one sentence, on a machine that has none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

#: What Triton prints at each start without a GPU, some of it as an error.
GPU_MESSAGE = re.compile(
    r"Unable to allocate pinned system memory"
    r"|failed to allocate pinned system memory: no pinned memory pool"
    r"|CUDA memory pool disabled"
    r"|CudaDriverHelper has not been initialized"
    r"|(Error: )?Failed to initialize NVML"
    r"|DCGM unable to start"
    r"|Unable to get number of CUDA devices"
    r"|(unable to create stream for .*: )?CUDA driver version is insufficient"
)
SENTENCE = "there is no NVIDIA GPU here: Triton runs on the CPU"

Members = dict[str, Any]


class GpuLines:
    """Passes Triton's lines on. Without a GPU, its messages about that become debug lines."""

    def __init__(self, emit: Callable[[Members], None], has_gpu: bool) -> None:
        self._emit, self._has_gpu = emit, has_gpu
        self._explained = False

    def __call__(self, members: Members) -> None:
        if self._has_gpu or not GPU_MESSAGE.match(str(members["message"])):
            self._emit(members)
            return
        if not self._explained:
            self._explained = True
            self._emit({"level": "info", "message": SENTENCE})
        self._emit({**members, "level": "debug"})
