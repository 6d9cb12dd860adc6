"""A client that returns all responses of a decoupled model in one result."""

import numpy as np

from sm.client import Client, Payload


class Numbers(Payload):
    numbers: list[float]


class Joined(Client):
    payload = Numbers
    models = ("parts",)

    def inference(self, payload: Numbers) -> list[list[float]]:
        inputs = {"x": np.array(payload.numbers, np.float32)}
        return [part["y"].tolist() for part in self.triton.stream("parts", inputs)]
