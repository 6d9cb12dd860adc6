"""A PyTorch program in Triton's python backend, on a GPU if the instance has one: the torch target's models.

Copied into the model repository as ``<model>/1/model.py``, beside ``model.pt2``, ``batching.py`` and
``request_token.py``; so it imports nothing of the box. Parameters of ``config.pbtxt``: ``threads``, the
threads of an instance on the CPU (its share of the cores if not set); ``cuda_graphs``, batch sizes such as
``1,2,4,8`` to record as CUDA graphs, for a model whose other sizes are fixed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import batching
import request_token
import torch

#: torch's name of each of Triton's types.
DTYPES = {
    "TYPE_FP32": torch.float32,
    "TYPE_FP16": torch.float16,
    "TYPE_FP64": torch.float64,
    "TYPE_INT8": torch.int8,
    "TYPE_INT16": torch.int16,
    "TYPE_INT32": torch.int32,
    "TYPE_INT64": torch.int64,
    "TYPE_UINT8": torch.uint8,
    "TYPE_BOOL": torch.bool,
}
#: Runs before a CUDA graph is recorded, so that libraries have chosen their kernels.
WARM_UPS = 3


class TritonPythonModel(batching.BatchingModel):  # type: ignore[misc]
    """One instance: a process of its own with the program's weights on its device."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.largest = int(config.get("max_batch_size", 0))
        self.batched = self.largest > 0
        self.device = device(args)
        if self.device.type == "cpu":
            torch.set_num_threads(batching.threads(config))
        path = Path(args["model_repository"]) / args["model_version"] / "model.pt2"
        program = torch.export.load(path)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, self.device)
        self.program = program.module()
        # In the program's order, which is the configuration's.
        self.inputs = [tensor["name"] for tensor in config["input"]]
        names = [tensor["name"] for tensor in config["output"]]
        self.outputs = [name for name in names if name != request_token.NAME]
        self.graphs = self.record(config) if self.device.type == "cuda" else {}

    def is_callers_fault(self, error: Exception) -> bool:
        # CUDA reports a word that is not in the vocabulary as an error of the device, after which the process
        # is of no use.
        if "CUDA error" in str(error):
            os._exit(1)
        return isinstance(error, (IndexError, ValueError, AssertionError))

    def compute(self, feed: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
        with torch.inference_mode():
            answers = dict(zip(self.outputs, self.run_program([*feed.values()]), strict=True))
            return {name: answers[name].cpu().numpy() for name in wanted}

    def run_program(self, feed: list[Any]) -> Any:
        """Run the program on its device: a recorded graph for a batch that fits one, padded to its size."""
        # torch wants arrays that it may write.
        tensors = [torch.from_numpy(array if array.flags.writeable else array.copy()) for array in feed]
        count = len(feed[0]) if self.largest else 0
        size = min((size for size in self.graphs if size >= count), default=None)
        if size is None:
            return self.program(*(tensor.to(self.device) for tensor in tensors))
        graph, inputs, outputs = self.graphs[size]
        for place, tensor in zip(inputs, tensors, strict=True):
            place[:count].copy_(tensor)
        graph.replay()
        return [output[:count] for output in outputs]

    def record(self, config: dict[str, Any]) -> dict[int, tuple[Any, list[Any], Any]]:
        """Record the program for the batch sizes of the parameter ``cuda_graphs``."""
        said = config.get("parameters", {}).get("cuda_graphs", {}).get("string_value", "")
        sizes = sorted({min(int(word), self.largest) for word in said.split(",") if word.strip()})
        shapes = [[int(size) for size in tensor["dims"]] for tensor in config["input"]]
        if not sizes or not self.largest:
            return {}
        if any(size < 0 for shape in shapes for size in shape):
            raise ValueError("cuda_graphs is for a model whose sizes are fixed, but for the batch")
        recorded = {}
        with torch.inference_mode():
            for size in sizes:
                inputs = [
                    torch.zeros([size, *shape], dtype=DTYPES[tensor["data_type"]], device=self.device)
                    for shape, tensor in zip(shapes, config["input"], strict=True)
                ]
                stream = torch.cuda.Stream()
                with torch.cuda.stream(stream):
                    for _ in range(WARM_UPS):
                        self.program(*inputs)
                torch.cuda.current_stream().wait_stream(stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    outputs = self.program(*inputs)
                recorded[size] = (graph, inputs, outputs)
        return recorded


def device(args: dict[str, str]) -> torch.device:
    """The instance's GPU; the CPU for an instance of the CPU."""
    if args.get("model_instance_kind") != "GPU":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(
            "the instance has a GPU (KIND_GPU), and this torch has no CUDA: install one with it"
        )
    return torch.device("cuda", int(args["model_instance_device_id"]))
