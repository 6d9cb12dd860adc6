"""Run a graph in this process, with ONNX Runtime on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, cast

import onnxruntime
from numpy.typing import NDArray

from sm.errors import StartError
from sm.tools.build.random_inputs import Feed

#: ONNX Runtime logs nothing but fatal errors: the others are raised, and may be expected.
FATAL = 4


class Runner(Protocol):
    """Runs inputs: an ONNX Runtime session, or the PyTorch module that a graph was exported from."""

    def run(self, output_names: list[str], input_feed: Feed, /) -> list[NDArray[Any]]:
        """Return the outputs, sorted by name."""


def session(path: Path, *, optimized: bool = True) -> Runner:
    """Open a session on the CPU, with all of ONNX Runtime's optimizations or with none."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return cast(
            Runner, onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        )
    except Exception as error:
        raise StartError(f"{path} cannot be run: {str(error).splitlines()[0]}.") from error
