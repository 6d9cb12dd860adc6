"""Token ids to token ids, for callers that have a tokenizer of their own.

Runs in the environment of its neighbour ``t5_translate``, so it imports nothing of the box.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton
from t5 import PAD, T5, BadInput

#: Tokens of an answer after the first PAD.
MAX_TOKENS = 64


class TritonPythonModel:
    """Takes ``input_ids`` and ``attention_mask`` INT32 [b, s]; gives ``output`` INT32 [b, t].

    As with other runtimes, a row starts with PAD and ends with END; shorter rows are padded with PAD.
    """

    def initialize(self, args: dict[str, str]) -> None:
        self.t5 = T5(Path(args["model_repository"]) / args["model_version"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return one response for each request, in order; a request that fails does not fail the others."""
        return [self.respond(request) for request in requests]

    def respond(self, request: Any) -> Any:
        ids, mask = (
            triton.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("input_ids", "attention_mask")
        )
        columns = [np.full(len(ids), PAD)]
        try:
            for token in self.t5.generate(ids, mask, MAX_TOKENS):
                if request.is_cancelled():
                    return error_response("the caller went away", triton.TritonError.CANCELLED)
                columns.append(token)
        except BadInput as mistake:
            return error_response(str(mistake), triton.TritonError.INVALID_ARG)
        return triton.InferenceResponse([triton.Tensor("output", np.stack(columns, 1).astype(np.int32))])


def error_response(reason: str, code: int) -> Any:
    return triton.InferenceResponse(output_tensors=[], error=triton.TritonError(reason, code))
