"""Record a graph's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.work import Array, Outputs, Run


class Recording:
    """Runs a graph and keeps the inputs and outputs of the last run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.inputs: Mapping[str, Array] = {}
        self.outputs: Outputs = {}

    def __call__(self, inputs: Mapping[str, Array]) -> Outputs:
        self.inputs, self.outputs = inputs, self._run(inputs)
        return self.outputs

    def run(self, names: Sequence[str] | None, inputs: Mapping[str, Array]) -> list[Array]:
        """Run it with the interface of an ONNX Runtime session."""
        outputs = self(inputs)
        return [outputs[name] for name in names or outputs]

    def save(self, folder: Path, model: str) -> None:
        np.savez(folder / "inputs" / f"{model}.npz", **self.inputs)
        np.savez(folder / "outputs" / f"{model}.npz", **self.outputs)
