"""A Python model that does to its GPU what the caller says: ``command``, int32 [1].

-2 asserts in a kernel, after which CUDA refuses everything to this process; -3 does the same, and then ends the
process, so that the box loads the model again; -1 takes all memory and keeps it; 0 adds
two numbers; more allocates that many GiB for this request. ``answer``: float32 [1], the GiB that it holds.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import torch

GIB = 2**30
#: Left to others: their own next allocation would fail without it, as it does with any greedy neighbour.
LEFT_BYTES = 300 * 2**20


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.device = torch.device("cuda" if args["model_instance_kind"] == "GPU" else "cpu")
        self.kept: list[torch.Tensor] = []
        torch.ones(1, device=self.device)

    def execute(self, requests: list[Any]) -> list[Any]:
        import triton_python_backend_utils as triton

        responses = []
        for request in requests:
            command = int(triton.get_input_tensor_by_name(request, "command").as_numpy().reshape(-1)[0])
            answer = np.array([self.obey(command)], np.float32)
            responses.append(triton.InferenceResponse([triton.Tensor("answer", answer)]))
        return responses

    def obey(self, command: int) -> float:
        if command == -3:
            try:
                return self.obey(-2)
            except torch.AcceleratorError:
                # After the error has reached Triton.
                threading.Timer(0.5, os._exit, (1,)).start()
                raise
        numbers = torch.ones(2, device=self.device)
        if command == -2:
            numbers[torch.tensor([7], device=self.device)].cpu()
        elif command == -1:
            free = torch.cuda.mem_get_info()[0] - LEFT_BYTES
            self.kept.append(torch.empty(max(0, free), dtype=torch.uint8, device=self.device))
        elif command:
            torch.empty(command * GIB, dtype=torch.uint8, device=self.device)
        assert float(numbers.sum()) == 2
        return sum(map(len, self.kept)) / GIB
