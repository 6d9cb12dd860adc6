"""Many requests: how long they took, how many a second, what went wrong."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sm.tools.bars import bar
from sm.tools.invoke.reply import NoReply, Reply

#: Rows of the histogram at most.
ROWS = 12


@dataclass
class LoadTest:
    """What was seen: ``latencies`` in seconds, of the good answers only; ``errors`` by their code."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    #: One of each error's sentences.
    sentences: dict[str, str] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        return len(self.latencies) + self.errors.total()


def measure(ask: Callable[[], Reply], requests: int, callers: int) -> LoadTest:
    """Ask so often, by so many callers at once, each with its next request when the last is answered."""
    load, lock, numbers = LoadTest(), threading.Lock(), iter(range(requests))

    def caller() -> None:
        while True:
            with lock:
                if next(numbers, None) is None:
                    return
            began = time.perf_counter()
            outcome = _one(ask)
            took = time.perf_counter() - began
            with lock:
                _note(load, outcome, took)

    began = time.perf_counter()
    with ThreadPoolExecutor(callers) as pool:
        running = [pool.submit(caller) for _ in range(min(callers, requests))]
        try:
            for future in running:
                future.result()
        except KeyboardInterrupt:
            # What is under way is answered, the rest is not asked; the table shows what there is.
            numbers = iter(())
    load.seconds = time.perf_counter() - began
    return load


def _one(ask: Callable[[], Reply]) -> Reply | NoReply:
    try:
        return ask()
    except NoReply as error:
        return error


def _note(load: LoadTest, outcome: Reply | NoReply, took: float) -> None:
    if isinstance(outcome, Reply) and outcome.good:
        load.latencies.append(took)
        return
    load.errors[outcome.code] += 1
    load.sentences[outcome.code] = outcome.sentence if isinstance(outcome, Reply) else str(outcome)


def table(load: LoadTest) -> Iterator[str]:
    """Latencies in milliseconds, requests a second, errors by code, then the histogram."""
    good = sorted(load.latencies)
    rate = len(good) / load.seconds
    yield f"{len(good)} of {load.asked} answered in {load.seconds:.2f} s: {rate:.1f} a second"
    if good:
        marks = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
        yield "  ".join(f"{name:>9}" for name in marks) + "  (ms)"
        yield "  ".join(f"{quantile(good, share) * 1000:>9.1f}" for share in marks.values())
        yield ""
        yield from histogram(good)
    for code, count in load.errors.most_common():
        yield f"{count} × {code}: {load.sentences[code]}"


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all are not above."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def histogram(ordered: Sequence[float]) -> Iterator[str]:
    """How many took how long. The last row has all slower ones: a straggler must not flatten the rest."""
    low, high = ordered[0], quantile(ordered, 0.98)
    width = (high - low) / (ROWS - 1) or 0.001
    counts = Counter(min(ROWS - 1, int((value - low) / width)) for value in ordered)
    most = max(counts.values())
    for row in range(max(counts) + 1):
        yield f"{(low + row * width) * 1000:>9.1f} ms {counts[row]:>6}  {bar(counts[row], most)}".rstrip()
