"""A client that sends its records together to a model whose process dies at the number 13."""

from collections.abc import Sequence

import numpy as np

from sm.client import Client, Payload


class Number(Payload):
    x: float


class Fragile(Client):
    payload = Number
    models = ("fragile_model",)

    def inference(self, payload: Number) -> object:
        return self.inference_batch([payload])[0]

    def inference_batch(self, payloads: Sequence[Number]) -> list[float]:
        x = np.array([[payload.x] for payload in payloads], np.float32)
        rows: list[list[float]] = self.triton.infer("fragile_model", {"x": x})["y"].tolist()
        return [row[0] for row in rows]
