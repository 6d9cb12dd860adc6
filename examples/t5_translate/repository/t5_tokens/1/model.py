"""Token ids to token ids: the plain form, for callers that have a tokenizer of their own.

Runs in the environment of its neighbour ``t5_translate``, so it imports nothing of the box.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton
from t5 import PAD, T5, Refused

#: Tokens of an answer.
MOST = 64


class TritonPythonModel:
    """``input_ids`` and ``attention_mask`` INT32 [b, s] to ``output`` INT32 [b, t].

    As other runtimes give it, a row starts with PAD and ends with END; shorter ones are filled up with PAD.
    """

    def initialize(self, args: dict[str, str]) -> None:
        self.t5 = T5(Path(args["model_repository"]) / args["model_version"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request, in order; one that fails does not fail the others."""
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        ids, mask = (
            triton.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("input_ids", "attention_mask")
        )
        columns = [np.full(len(ids), PAD)]
        try:
            for token in self.t5.answer(ids, mask, MOST):
                if request.is_cancelled():
                    return failed("the caller went away", triton.TritonError.CANCELLED)
                columns.append(token)
        except Refused as refused:
            return failed(str(refused), triton.TritonError.INVALID_ARG)
        return triton.InferenceResponse([triton.Tensor("output", np.stack(columns, 1).astype(np.int32))])


def failed(reason: str, code: int) -> Any:
    """A response that is an error."""
    return triton.InferenceResponse(output_tensors=[], error=triton.TritonError(reason, code))
