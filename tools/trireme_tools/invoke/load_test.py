"""Send many requests and measure times, rate and errors."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from trireme_tools.charts import bar
from trireme_tools.invoke.messages import InvokeReply, NoReply

#: The most rows of the histogram.
HISTOGRAM_ROWS = 12
#: Shares of the requests whose longest time is shown.
MARKS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


@dataclass
class LoadTest:
    """The results: ``latencies`` in seconds, of successful answers only; ``errors`` by code."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    #: An example sentence of each error.
    sentences: dict[str, str] = field(default_factory=dict)
    #: Whether Ctrl-C ended it early.
    interrupted: bool = False

    @property
    def request_count(self) -> int:
        return len(self.latencies) + self.errors.total()


def measure(
    ask: Callable[[], InvokeReply],
    requests: int,
    callers: int,
    seconds: float = math.inf,
    load: LoadTest | None = None,
) -> LoadTest:
    """Send the requests with several callers at once, each sending its next when the last is answered.

    After ``seconds`` no more are sent; those under way are finished. ``load`` is filled meanwhile, for those
    who watch it.
    """
    load = LoadTest() if load is None else load
    lock, numbers = threading.Lock(), iter(range(requests))

    def caller() -> None:
        while True:
            with lock:
                if time.perf_counter() > end or next(numbers, None) is None:
                    return
            began = time.perf_counter()
            outcome = _send_one(ask)
            seconds_taken = time.perf_counter() - began
            with lock:
                _note(load, outcome, seconds_taken)

    began = time.perf_counter()
    end = began + seconds
    with ThreadPoolExecutor(callers) as pool:
        running = [pool.submit(caller) for _ in range(min(callers, requests))]
        try:
            for future in running:
                future.result()
        except KeyboardInterrupt:
            # Requests under way are finished, no more are sent, and the table shows what there is.
            numbers = iter(())
            load.interrupted = True
    load.seconds = time.perf_counter() - began
    return load


def _send_one(ask: Callable[[], InvokeReply]) -> InvokeReply | NoReply:
    try:
        return ask()
    except NoReply as error:
        return error


def _note(load: LoadTest, outcome: InvokeReply | NoReply, seconds: float) -> None:
    if isinstance(outcome, InvokeReply) and outcome.is_success:
        load.latencies.append(seconds)
        return
    load.errors[outcome.code] += 1
    load.sentences[outcome.code] = outcome.sentence if isinstance(outcome, InvokeReply) else str(outcome)


def table(load: LoadTest) -> Iterator[str]:
    """Yield latencies in milliseconds, requests a second, errors by code, and the histogram."""
    latencies = sorted(load.latencies)
    rate = len(latencies) / load.seconds
    yield f"{len(latencies)} of {load.request_count} answered in {load.seconds:.2f} s: {rate:.1f} a second"
    if latencies:
        yield "  ".join(f"{name:>9}" for name in MARKS) + "  (ms)"
        yield "  ".join(f"{quantile(latencies, share) * 1000:>9.1f}" for share in MARKS.values())
        yield ""
        yield from histogram(latencies)
    for code, count in load.errors.most_common():
        yield f"{count} × {code}: {load.sentences[code]}"


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that is not below ``share`` of all."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def histogram(ordered: Sequence[float]) -> Iterator[str]:
    """Yield a histogram of the times. The last row collects the slowest, so that outliers do not flatten the
    rest.
    """
    low, high = ordered[0], quantile(ordered, 0.98)
    width = (high - low) / (HISTOGRAM_ROWS - 1) or 0.001
    counts = Counter(min(HISTOGRAM_ROWS - 1, int((value - low) / width)) for value in ordered)
    most = max(counts.values())
    for row in range(max(counts) + 1):
        yield f"{(low + row * width) * 1000:>9.1f} ms {counts[row]:>6}  {bar(counts[row], most)}".rstrip()
