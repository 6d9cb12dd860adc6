"""Processes that stand still for 1 to 10 s: one stub, all stubs, Triton, the whole box.

Triton's python backend gives up on a stub after about a second and takes its late reply for the answer to the next
request. ``docker pause``, a suspended machine or a laptop's sleep stop the whole box in the same way.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from tests.support.faults.attack import Fault, stall
from tests.support.faults.boxes import ECHO, everything, stubs, triton

SHORTEST_S, LONGEST_S = 1.0, 10.0
#: Whose stub stands still, in turn: the model whose picture answers were mixed up, then the others.
STALLED_MODELS = ("resnet", ECHO, "yolov5", "bert_base")


def make_stalls(count: int, seed: int, longest_s: float = LONGEST_S) -> Iterator[Fault]:
    """``count`` stalls; their lengths are spread evenly up to the longest, in a random order."""
    step = (longest_s - SHORTEST_S) / max(1, count - 1)
    lengths = [round(SHORTEST_S + number * step, 1) for number in range(count)]
    random.Random(seed).shuffle(lengths)
    for number, seconds in enumerate(lengths):
        model = STALLED_MODELS[number // 4 % len(STALLED_MODELS)]
        yield [
            Fault(
                f"a stub of {model} stopped for {seconds:g} s",
                stall(partial(stubs, model=model), seconds),
                focus=model,
                seconds=seconds,
            ),
            Fault(f"all stubs stopped for {seconds:g} s", stall(stubs, seconds, every=True), model, seconds),
            Fault(f"Triton stopped for {seconds:g} s", stall(triton, seconds), model, seconds),
            Fault(
                f"the whole box stopped for {seconds:g} s",
                stall(everything, seconds, every=True),
                model,
                seconds,
            ),
        ][number % 4]
