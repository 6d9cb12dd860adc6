"""OpenVINO as an engine of a model on a CPU.

Copied into the model repository beside golden data, with ``exactness.py``; so it imports nothing of the box.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

#: Beside a graph neither module is a part of a package.
exactness = importlib.import_module(f"{__package__}.exactness" if __package__ else "exactness")


class OpenVino:
    """A compiled model. After a failed run it must not be used again: see ``Guarded`` in ``engines.py``."""

    def __init__(self, graph: Path, threads: int, *, in_bf16: bool = False, by_record: bool = False) -> None:
        """Read and compile a graph.

        Args:
            graph: The file, in ONNX or OpenVINO's own form.
            threads: How many it computes with.
            in_bf16: Compute in bf16 what is not quantized.
            by_record: Compile a graph whose batch alone is free for one record: that is faster, and smaller.
        """
        # Without its converter of other formats, a process is 6 MB smaller.
        sys.modules.setdefault("openvino.tools.ovc", cast(ModuleType, None))
        import openvino

        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            # Two processes would pin their threads to the same core.
            "ENABLE_CPU_PINNING": False,
            "INFERENCE_PRECISION_HINT": "bf16" if in_bf16 else "f32",
        }
        core = openvino.Core()
        model = core.read_model(str(graph))
        shapes = {value.any_name: value.partial_shape for value in model.inputs}
        self.by_record = by_record and all(
            shape[0].is_dynamic and not any(size.is_dynamic for size in shape[1:])
            for shape in ([*shape] for shape in shapes.values())
        )
        if self.by_record:
            model.reshape({name: [1, *[*shape][1:]] for name, shape in shapes.items()})
        self.trust = exactness.read(model)
        if len(self.trust.wrong) == len(model.outputs):
            raise ValueError(f"it computes otherwise: {self.trust}")
        self.compiled = core.compile_model(model, "CPU", settings)
        self.inputs = [value.any_name for value in self.compiled.inputs]
        # An output's tensor may have more names, such as that of the value before an Identity.
        self.outputs = [
            value.node.friendly_name.removesuffix(exactness.RESULT) for value in self.compiled.outputs
        ]
        self.places = {name: place for place, name in enumerate(self.outputs)}

    def takes(self, wanted: Sequence[str], feed: Mapping[str, Any]) -> bool:
        """True if its answer is that of ONNX Runtime."""
        return bool(self.trust.takes(wanted, feed))

    def run(self, wanted: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
        """Run one feed."""
        records = max(len(array) for array in feed.values()) if self.by_record else 1
        if records == 1:
            return self._run(wanted, feed)
        parts = [
            self._run(wanted, {name: array[place : place + 1] for name, array in feed.items()})
            for place in range(records)
        ]
        return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]

    def _run(self, wanted: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
        """Run the graph once.

        A new request for each run, and not its ``infer()``: in OpenVINO 2026.4 that hides some errors of a
        graph with free sizes, and returns the outputs of the run before.
        """
        request = self.compiled.create_infer_request()
        request.start_async(dict(feed), share_inputs=True)
        request.wait()
        return [np.array(request.get_output_tensor(self.places[name]).data) for name in wanted]
