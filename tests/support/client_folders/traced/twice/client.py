"""A client that calls a model twice, with a tracing span of its own in between."""

import numpy as np
from opentelemetry import trace

from sm.client import Client, TextPayload

tracer = trace.get_tracer("a team")


class Twice(Client):
    models, payload = ("echo",), TextPayload

    def inference(self, payload: TextPayload) -> list[float]:
        first = self.triton.infer("echo", {"x": np.array([[len(payload.text)]], np.float32)})["y"]
        with tracer.start_as_current_span("look up", attributes={"team.rows": 3}):
            return [float(value) for value in self.triton.infer("echo", {"x": first})["y"].ravel()]
