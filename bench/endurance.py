"""Memory of an idle box after more and more requests."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench import tree
from bench.contestants.trireme import Trireme
from bench.measuring import WARM_CALLERS, drive
from sm.errors import CommandError
from sm.server import worker

#: Seconds of each model in a round: the quickest gives the number of requests, the pictures the memory.
ROUND = {"bert_base": 4.0, "resnet": 1.0, "yolov5": 1.0}
#: Seconds after which an idle box has returned unused memory.
SETTLE_S = 2 * worker.IDLE_TRIM_INTERVAL_S + 1
#: The box's own memory. The share of a library's pages depends on who else on the machine has it open.
OWN = ("Pss_Anon", "Pss_Shmem")
#: Flat is less than this: bytes for 10,000 requests, and the share of the whole.
MAX_GROWTH_BYTES, MAX_GROWTH_SHARE = 2**20, 0.03


@dataclass(frozen=True)
class MemorySample:
    """Bytes after so many requests, of all processes and of those without Triton; libraries do not count."""

    requests: int
    memory: int
    own_memory: int


def memory_samples(
    box: Trireme, root: int, requests: int, longest: float, pause: float = SETTLE_S
) -> Iterator[MemorySample]:
    """Sample after a twentieth of the requests and each tenth, until ``longest`` seconds have passed."""
    until, sent = time.monotonic() + longest, 0
    for twentieths in (1, *range(2, 21, 2)):
        while sent < requests * twentieths / 20:
            if time.monotonic() > until:
                return
            sent += send_round(box, root)
        time.sleep(pause)
        yield MemorySample(sent, *tree.memory([root], OWN))


def send_round(box: Trireme, root: int) -> int:
    """Send one round of requests; a wrong answer raises :class:`CommandError`."""
    answers = 0
    for model, seconds in ROUND.items():
        load, _ = drive(box, root, model, "json", WARM_CALLERS, seconds)
        if load.wrong or load.lost:
            raise CommandError(f"{load.wrong} answers of {model} were wrong, {load.lost} were lost")
        answers += load.answers
    return answers


def measured_growth(samples: Sequence[MemorySample]) -> tuple[float, float]:
    """Compare the medians of the third and the last quarter: bytes per 10,000 requests, and as a share.

    Single samples differ by some MB, depending on how many pictures a worker last held at once.
    """
    total = samples[-1].requests if samples else 0
    quarters = [
        [sample.memory for sample in samples if start < sample.requests / total <= start + 0.25]
        for start in (0.5, 0.75)
    ]
    if not all(quarters):
        raise CommandError(
            f"{total:,} requests in {len(samples)} samples are too few to tell: give it more --minutes"
        )
    third, last = (statistics.median(quarter) for quarter in quarters)
    return (last - third) * 10_000 / (total / 4), (last - third) / third


def is_flat(samples: Sequence[MemorySample]) -> bool:
    growth, share = measured_growth(samples)
    return growth < MAX_GROWTH_BYTES and share < MAX_GROWTH_SHARE
