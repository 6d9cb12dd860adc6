"""A client that streams one part for each response of a decoupled model."""

from collections.abc import Iterator

import numpy as np

from sm.client import Payload, StreamingClient


class Count(Payload):
    count: int
    seconds: float = 0.0


class Numbers(StreamingClient):
    payload = Count
    models = ("counts",)

    def stream(self, payload: Count) -> Iterator[object]:
        inputs = {"count": np.array([payload.count]), "seconds": np.array([payload.seconds], np.float32)}
        for answer in self.triton.stream("counts", inputs):
            yield {"number": answer["number"].item()}
