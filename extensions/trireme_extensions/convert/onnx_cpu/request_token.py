"""Answers that say which request they are for: copy this file beside the ``model.py`` of a Python model.

Triton's python backend may take the late answer of a stalled model for the answer to the next request. The
box gives each request a number, its token, and a model that sends the token back cannot be mistaken: the box
refuses an answer with another token. Callers see nothing of it: the output is only sent where a token came.

::

    import request_token

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            return request_token.declare(config)

        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([*self.run(request), *request_token.tensors(request)])
                for request in requests
            ]
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

#: The request's parameter that brings the token, and the output that takes it back.
NAME = "trireme_request_token"


def declare(config: Any) -> Any:
    """Add the output to a model's configuration; Triton asks for it while it loads the model."""
    config.add_output({"name": NAME, "data_type": "TYPE_INT64", "dims": [1]})
    return config


def tensors(request: Any) -> list[Any]:
    """The output tensor for a request that brought a token; none for any other.

    INT64 of shape [1, 1], which is also one row of a model that batches.
    """
    if NAME not in request.requested_output_names():
        return []
    token = json.loads(request.parameters()).get(NAME)
    if not isinstance(token, int):
        return []
    return [triton.Tensor(NAME, np.array([[token]], dtype=np.int64))]
