"""A client that sends numbers through the model ``echo``; a negative first number raises an exception."""

from typing import Any

import numpy as np

from sm.client import Payload, TensorClient


class Numbers(Payload):
    x: list[float]


class Echoes(TensorClient):
    model, payload = "echo", Numbers

    def preprocess(self, payload: Numbers) -> dict[str, Any]:
        return {"x": np.array(payload.x, np.float32)}

    def postprocess(self, outputs: Any, payload: Numbers) -> list[float]:
        if payload.x[0] < 0:
            raise ValueError(f"cannot say {payload.x}")
        return [float(value) for value in outputs["y"]]
