"""Without a GPU, Triton's lines about it become one sentence; with a GPU every line keeps its level."""

from __future__ import annotations

import pytest

from sm.server.logs import SENTENCE, GpuLines, Members, parse

#: What Triton prints on a machine without a GPU.
NO_GPU_LINES = (
    'W1123 01:46:47.323 7 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory, pinned '
    'memory pool will not be available: CUDA driver version is insufficient for CUDA runtime version"',
    'I1123 01:46:47.323 7 cuda_memory_manager.cc:117] "CUDA memory pool disabled"',
    'E1123 01:46:47.323 7 server.cc:241] "CudaDriverHelper has not been initialized."',
    'W1123 01:46:49.102 7 pinned_memory_manager.cc:170] "failed to allocate pinned system memory: no pinned '
    'memory pool, falling back to non-pinned system memory"',
    "Error: Failed to initialize NVML",
    'E1123 01:46:49.101 7 ensemble_scheduler.cc:1468] "unable to create stream for whole: CUDA driver version '
    'is insufficient for CUDA runtime version"',
    'W1123 01:46:50.684 7 metrics.cc:798] "DCGM unable to start: DCGM initialization error"',
)
MODEL_ERROR = "E1123 01:46:50.684 7 model_lifecycle.cc:630] \"failed to load 'a': no CUDA-capable device\""


@pytest.mark.parametrize("has_gpu", [True, False])
def test_tritons_lines_about_a_missing_gpu_are_errors_only_on_a_machine_with_one(has_gpu: bool) -> None:
    written: list[Members] = []
    lines = GpuLines(written.append, has_gpu)
    for line in (*NO_GPU_LINES, MODEL_ERROR):
        lines(parse(line))
    levels = [members["level"] for members in written]
    if has_gpu:
        assert levels == ["warning", "info", "error", "warning", "info", "error", "warning", "error"]
        return
    assert levels == ["info", *["debug"] * len(NO_GPU_LINES), "error"]
    assert written[0]["message"] == SENTENCE
