"""Faults that stop processes for 1 to 10 s: one stub, all stubs, Triton, or the whole box.

Triton's python backend gives up on a stub after about a second, and may take its late reply for the answer to the
next request. ``docker pause`` and a suspended machine stop the whole box in the same way.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from tests.support.faults.attack import Fault, make_kill, make_stall
from tests.support.faults.boxes import ECHO, PAIR, all_processes, stubs, triton

SHORTEST_S, LONGEST_S = 1.0, 10.0
#: The models whose stubs are stopped, in turn. ``resnet`` is first: its answers were mixed up once.
STALLED_MODELS = ("resnet", ECHO, "yolov5", "bert_base")


def make_stalls(count: int, seed: int, longest_s: float = LONGEST_S) -> Iterator[Fault]:
    """Yield ``count`` stalls with evenly spread lengths in a random order."""
    step = (longest_s - SHORTEST_S) / max(1, count - 1)
    lengths = [round(SHORTEST_S + number * step, 1) for number in range(count)]
    random.Random(seed).shuffle(lengths)
    for number, seconds in enumerate(lengths):
        model = STALLED_MODELS[number // 4 % len(STALLED_MODELS)]
        yield [
            Fault(
                f"{what} stopped for {seconds:g} s",
                make_stall(find, seconds, every=find in (stubs, all_processes)),
                focus=model,
                seconds=seconds,
                unnoticed=True,
            )
            for what, find in (
                (f"a stub of {model}", partial(stubs, model=model)),
                ("all stubs", stubs),
                ("Triton", triton),
                ("the whole box", all_processes),
            )
        ][number % 4]


def make_small_faults(count: int, seed: int) -> Iterator[Fault]:
    """Yield kills and stalls of up to 3 s, in turn: of two small models, of Triton, and of the whole box."""
    choice = random.Random(seed)
    for number in range(count):
        model, seconds = (ECHO, PAIR)[number % 2], round(choice.uniform(0.3, 3.0), 1)
        what, find = (
            (f"a stub of {model}", partial(stubs, model=model)),
            (f"a stub of {model}", partial(stubs, model=model)),
            ("Triton", triton),
            ("Triton", triton),
            ("the whole box", all_processes),
        )[number // 2 % 5]
        if number // 2 % 5 in (0, 2):
            yield Fault(f"{what} killed", make_kill(find), model, unnoticed=True)
        else:
            stall = make_stall(find, seconds, every=find is all_processes)
            yield Fault(f"{what} stopped for {seconds:g} s", stall, model, seconds, unnoticed=True)
