"""The code that models of the box's own targets share in Triton's python backend: requests run as one batch.

Copied into the model repository beside ``model.py``; so it imports nothing of the box.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import request_token
import triton_python_backend_utils as triton

#: The variable with the cores that the box may use. A Triton that no box has started lacks it.
CORES = "TRIREME_CORES"


class BatchingModel:
    """One instance: a process of its own. Subclasses set the attributes in ``initialize``."""

    #: True if Triton's model takes batches: then requests are joined along the first axis.
    batched: bool
    #: Names of the inputs, in the order of the program.
    inputs: list[str]
    #: Names of the outputs.
    outputs: list[str]

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Declare the output that says which request an answer is for."""
        return request_token.declare(config)

    def compute(self, feed: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
        """Run the program once; return at least the wanted outputs."""
        raise NotImplementedError

    def is_callers_fault(self, error: Exception) -> bool:
        """True if the program cannot take what the caller sent, such as a word not in its vocabulary."""
        raise NotImplementedError

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request, in order."""
        responses: list[Any] = [None] * len(requests)
        alive = []
        for place, request in enumerate(requests):
            if request.is_cancelled():
                responses[place] = failed("the caller went away", triton.TritonError.CANCELLED)
            else:
                alive.append((place, request))
        for batch in [alive] if self.batched else [[each] for each in alive]:
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
            theirs = self.is_callers_fault(error)
            code = triton.TritonError.INVALID_ARG if theirs else triton.TritonError.INTERNAL
            responses = [failed(f"{type(error).__name__}: {error}", code)]
        return list(zip((place for place, _ in placed), responses, strict=True))

    def run(self, requests: list[Any]) -> list[Any]:
        """Join the requests along the batch axis, run the program once, and split the outputs."""
        tensors = [self.tensors(request) for request in requests]
        feed = {name: join([each[name] for each in tensors]) for name in self.inputs}
        wanted = [name for name in self.outputs if any(name in r.requested_output_names() for r in requests)]
        outputs = self.compute(feed, wanted)
        if len(requests) == 1:
            return [self.response(requests[0], outputs)]
        ends = np.cumsum([each[self.inputs[0]].shape[0] for each in tensors])[:-1]
        parts = {name: np.split(outputs[name], ends) for name in wanted}
        return [
            self.response(request, {name: part[place] for name, part in parts.items()})
            for place, request in enumerate(requests)
        ]

    def tensors(self, request: Any) -> dict[str, Any]:
        """A request's inputs by name."""
        return {name: triton.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs}

    def response(self, request: Any, outputs: dict[str, Any]) -> Any:
        """A response with the outputs that this request asked for."""
        wanted = request.requested_output_names()
        tensors = [triton.Tensor(name, value) for name, value in outputs.items() if name in wanted]
        return triton.InferenceResponse(output_tensors=[*tensors, *request_token.tensors(request)])


def threads(config: dict[str, Any]) -> int:
    """The parameter ``threads``, or the cores that the box may use, shared among the instances."""
    said = config.get("parameters", {}).get("threads", {}).get("string_value", "")
    cores = int(os.environ.get(CORES) or len(os.sched_getaffinity(0)))
    instances = sum(group.get("count", 1) for group in config.get("instance_group", []))
    return int(said) if said else max(1, cores // max(1, instances))


def join(tensors: list[Any]) -> Any:
    """Along the batch axis; a lone tensor as it is, without a copy."""
    return tensors[0] if len(tensors) == 1 else np.concatenate(tensors)


def failed(reason: str, code: int) -> Any:
    """A response that is an error."""
    return triton.InferenceResponse(output_tensors=[], error=triton.TritonError(reason, code))
