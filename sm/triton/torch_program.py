"""A PyTorch program in Triton's python backend, on a GPU if the instance has one: the torch target's models.

Copied into the model repository as ``<model>/1/model.py``, beside ``model.pt2`` and ``request_token.py``;
so it imports nothing of the box. Parameters of ``config.pbtxt``: ``threads``, the threads of an instance on
the CPU (its share of the cores if not set); ``cuda_graphs``, batch sizes such as ``1,2,4,8`` to record as
CUDA graphs, for a model whose other sizes are fixed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import request_token
import torch
import triton_python_backend_utils as triton

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


class TritonPythonModel:
    """One instance: a process of its own with the program's weights on its device."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Declare the output that says which request an answer is for."""
        return request_token.declare(config)

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.largest = int(config.get("max_batch_size", 0))
        self.device = device(args)
        if self.device.type == "cpu":
            torch.set_num_threads(threads(config))
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

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request, in order."""
        responses: list[Any] = [None] * len(requests)
        alive = []
        for place, request in enumerate(requests):
            if request.is_cancelled():
                responses[place] = failed("the caller went away", triton.TritonError.CANCELLED)
            else:
                alive.append((place, request))
        for batch in [alive] if self.largest else [[each] for each in alive]:
            for place, response in self.answer(batch):
                responses[place] = response
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
            # A word that is not in the vocabulary is the caller's. CUDA reports it as an error of the device,
            # after which the process is of no use.
            theirs = isinstance(error, (IndexError, ValueError, AssertionError))
            code = triton.TritonError.INVALID_ARG if theirs else triton.TritonError.INTERNAL
            responses = [failed(f"{type(error).__name__}: {error}", code)]
            if "CUDA error" in str(error):
                os._exit(1)
        return list(zip((place for place, _ in placed), responses, strict=True))

    def run(self, requests: list[Any]) -> list[Any]:
        """Join the requests along the batch axis, run the program once, and split the outputs."""
        tensors = [self.tensors(request) for request in requests]
        feed = [join([each[name] for each in tensors]) for name in self.inputs]
        wanted = {name for request in requests for name in request.requested_output_names()}
        with torch.inference_mode():
            answers = dict(zip(self.outputs, self.compute(feed), strict=True))
            outputs = {name: answer.cpu().numpy() for name, answer in answers.items() if name in wanted}
        if len(requests) == 1:
            return [self.response(requests[0], outputs)]
        ends = np.cumsum([each[self.inputs[0]].shape[0] for each in tensors])[:-1]
        parts = {name: np.split(output, ends) for name, output in outputs.items()}
        return [
            self.response(request, {name: part[place] for name, part in parts.items()})
            for place, request in enumerate(requests)
        ]

    def compute(self, feed: list[Any]) -> Any:
        """Run the program on its device: a recorded graph for a batch that fits one, padded to its size."""
        tensors = [torch.from_numpy(array) for array in feed]
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

    def tensors(self, request: Any) -> dict[str, Any]:
        return {name: triton.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs}

    def response(self, request: Any, outputs: dict[str, Any]) -> Any:
        """A response with the outputs that this request asked for."""
        wanted = request.requested_output_names()
        tensors = [triton.Tensor(name, value) for name, value in outputs.items() if name in wanted]
        return triton.InferenceResponse(output_tensors=[*tensors, *request_token.tensors(request)])


def device(args: dict[str, str]) -> torch.device:
    """The instance's GPU; the CPU for an instance of the CPU."""
    if args.get("model_instance_kind") != "GPU":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(
            "the instance has a GPU (KIND_GPU), and this torch has no CUDA: install one with it"
        )
    return torch.device("cuda", int(args["model_instance_device_id"]))


def threads(config: dict[str, Any]) -> int:
    """The parameter ``threads``, or the cores that this process may use, shared among the instances."""
    said = config.get("parameters", {}).get("threads", {}).get("string_value", "")
    instances = sum(group.get("count", 1) for group in config.get("instance_group", []))
    return int(said) if said else max(1, len(os.sched_getaffinity(0)) // max(1, instances))


def join(tensors: list[Any]) -> Any:
    """Along the batch axis; torch wants an array that it may write."""
    joined = tensors[0] if len(tensors) == 1 else np.concatenate(tensors)
    return joined if joined.flags.writeable else joined.copy()


def failed(reason: str, code: int) -> Any:
    """A response that is an error."""
    return triton.InferenceResponse(output_tensors=[], error=triton.TritonError(reason, code))
