"""The processor time that the box spends on decoding alone."""

from __future__ import annotations

import time

from bench.samples import sample
from sm.client.images import decode

ROUNDS = 30


def seconds(model: str) -> float:
    """Measure the processor seconds of the box's own decoder for the model's sample; 0 for a text."""
    content = sample(model).content
    if sample(model).content_type == "text/plain":
        return 0.0
    for _ in range(3):
        decode(content)
    before = time.process_time()
    for _ in range(ROUNDS):
        decode(content)
    return (time.process_time() - before) / ROUNDS
