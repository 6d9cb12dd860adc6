"""A Python model that takes float32 [1204224] on the GPU and gives float32 [2150400] there: a tensor's way, little work."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

OUTPUT_NUMBERS = 2_150_400


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.device = torch.device("cuda" if args["model_instance_kind"] == "GPU" else "cpu")

    def execute(self, requests: list[Any]) -> list[Any]:
        import triton_python_backend_utils as triton

        responses = []
        for request in requests:
            tensor = from_dlpack(triton.get_input_tensor_by_name(request, "input").to_dlpack()).to(
                self.device
            )
            output = tensor.repeat(2)[:OUTPUT_NUMBERS].contiguous() + 1
            responses.append(
                triton.InferenceResponse([triton.Tensor.from_dlpack("output", to_dlpack(output))])
            )
        return responses
