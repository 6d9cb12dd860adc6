"""Memory over many requests: what a box has when it is at rest after the first, and after ever more."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench import tree
from bench.contestants.trireme import Trireme
from bench.measuring import WARM_CALLERS, drive
from sm.errors import StartError
from sm.server import memory_trim

#: Seconds of each model in a round: the quickest makes the number, the pictures make the memory.
ROUND = {"bert_base": 4.0, "resnet": 1.0, "yolov5": 1.0}
#: Seconds after which a box at rest has given back what it does not need.
SETTLE_S = 2 * memory_trim.IDLE_TRIM_INTERVAL_S + 1
#: The box's own memory. The share of a library's pages depends on who else on the machine has it open.
OWN = ("Pss_Anon", "Pss_Shmem")
#: Flat is less than this: bytes for 10,000 requests, and the share of the whole.
MAX_GROWTH_BYTES, MAX_GROWTH_SHARE = 2**20, 0.03


@dataclass(frozen=True)
class Look:
    """Bytes after so many requests, of all processes and of all but Triton's; libraries are left out."""

    requests: int
    memory: int
    own_memory: int


def looks(box: Trireme, root: int, requests: int, longest: float, pause: float = SETTLE_S) -> Iterator[Look]:
    """After a twentieth of the requests, then after each tenth, or until ``longest`` seconds are over."""
    until, done = time.monotonic() + longest, 0
    for twentieths in (1, *range(2, 21, 2)):
        while done < requests * twentieths / 20:
            if time.monotonic() > until:
                return
            done += asked(box, root)
        time.sleep(pause)
        yield Look(done, *tree.memory([root], OWN))


def asked(box: Trireme, root: int) -> int:
    """One round; :class:`StartError` for an answer that is not right."""
    answers = 0
    for model, seconds in ROUND.items():
        load, _ = drive(box, root, model, "json", WARM_CALLERS, seconds)
        if load.wrong or load.lost:
            raise StartError(f"{load.wrong} answers of {model} were wrong, {load.lost} were lost")
        answers += load.answers
    return answers


def grown(found: Sequence[Look]) -> tuple[float, float]:
    """From the third quarter to the last, medians: bytes for 10,000 requests, and the share of the whole.

    Single looks differ by some MB: how many pictures at once a worker had last is chance.
    """
    most = found[-1].requests if found else 0
    quarters = [
        [look.memory for look in found if start < look.requests / most <= start + 0.25]
        for start in (0.5, 0.75)
    ]
    if not all(quarters):
        raise StartError(
            f"{most:,} requests in {len(found)} looks are too few to tell: give it more --minutes"
        )
    third, last = (statistics.median(quarter) for quarter in quarters)
    return (last - third) * 10_000 / (most / 4), (last - third) / third


def flat(found: Sequence[Look]) -> bool:
    each, share = grown(found)
    return each < MAX_GROWTH_BYTES and share < MAX_GROWTH_SHARE
