"""A client that streams what a decoupled model gives, as fast as it comes."""

from collections.abc import Iterator

import numpy as np

from sm.client import Payload, StreamingClient


class Wanted(Payload):
    seconds: float
    size: int = 100_000
    model: str = "torrent"


class Torrent(StreamingClient):
    payload = Wanted
    models = ("torrent", "stubborn")

    def stream(self, payload: Wanted) -> Iterator[object]:
        inputs = {"size": np.array([payload.size]), "seconds": np.array([payload.seconds], np.float32)}
        for answer in self.triton.stream(payload.model, inputs):
            yield answer["text"].item().decode()
