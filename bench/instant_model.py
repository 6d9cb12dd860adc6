"""A model for Triton's python backend that answers at once, like an infinitely fast accelerator.

Copied into a repository beside ``outputs.npz``: each output of a batch of one, under its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton


class TritonPythonModel:
    """Its outputs are those recorded, whatever it is asked."""

    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"]) / args["model_version"]
        with np.load(folder / "outputs.npz") as recorded:
            self.outputs = dict(recorded)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.response(request) for request in requests]

    def response(self, request: Any) -> Any:
        """Return the outputs that this request asked for."""
        tensors = [triton.Tensor(name, self.outputs[name]) for name in request.requested_output_names()]
        return triton.InferenceResponse(tensors)
