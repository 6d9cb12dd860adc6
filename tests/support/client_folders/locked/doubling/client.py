"""A client whose tensors are large enough for shared memory."""

import numpy as np

from sm.client import Payload, TensorClient, Tensors


class Size(Payload):
    value: float


class Doubling(TensorClient):
    model = "fixed"
    payload = Size

    def preprocess(self, payload: Size) -> Tensors:
        return {"x": np.full(100_000, payload.value, np.float32)}

    def postprocess(self, outputs: Tensors, payload: Size) -> float:
        return float(outputs["y"].mean())
