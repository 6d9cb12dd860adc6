"""Measure a box's rate under far too many callers, who honour ``Retry-After``, against its best rate."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.boxes import RunningBox
from tests.support.faults import report
from tests.support.faults.boxes import DEADLINE_S, HANG_MARGIN_S
from tests.support.faults.callers import RIGHT, Callers, PingWatcher
from tests.support.faults.inputs import Sample

#: The best rate is the higher one with these numbers of callers.
FEW_CALLERS = (8, 24)
MANY_CALLERS = 500
WARM_UP_S = 3.0  # before the measurement, until the queues are full
MIN_SHARE = 0.8  # of the best rate, under overload
EXPECTED = {RIGHT, "429", "503"}
COLUMNS = ("callers", "seconds", "right answers a second", "slowest right answer", "answers", "/ping")


@dataclass(frozen=True)
class Phase:
    callers: int
    seconds: float
    rate: float
    slowest_s: float
    outcomes: Counter[str]
    ping: str
    details: tuple[str, ...]

    def cells(self) -> list[str]:
        answers = ", ".join(f"{count} × {outcome}" for outcome, count in sorted(self.outcomes.items()))
        return [
            str(self.callers),
            f"{self.seconds:.0f}",
            f"{self.rate:.1f}",
            f"{self.slowest_s:.1f} s",
            answers,
            self.ping,
        ]


@dataclass(frozen=True)
class Overload:
    phases: tuple[Phase, ...]

    @property
    def share(self) -> float:
        """The rate under overload as a share of the best rate."""
        *few, many = self.phases
        return many.rate / max(phase.rate for phase in few)

    @property
    def details(self) -> tuple[str, ...]:
        return tuple(detail for phase in self.phases for detail in phase.details)

    def misses(self, share: float = MIN_SHARE) -> list[str]:
        """Return a sentence for each goal that the box misses."""
        missed = []
        unexpected = set(self.phases[-1].outcomes) - EXPECTED
        if unexpected:
            missed.append(f"callers saw: {', '.join(sorted(unexpected))}")
        if self.share < share:
            missed.append(f"{self.share:.0%} of the best rate")
        return missed

    def markdown(self) -> str:
        rows = report.table(COLUMNS, [phase.cells() for phase in self.phases])
        return f"{rows}\n\nUnder the overload {self.share:.0%} of the best rate."


def overload(
    box: RunningBox, samples: Sequence[Sample], seconds: float, many: int = MANY_CALLERS
) -> Overload:
    """Measure the rate for ``seconds`` with few callers, then with many."""
    one_kind = [sample for sample in samples if sample.model == "resnet"]
    return Overload(tuple(run_phase(box, one_kind, callers, seconds) for callers in (*FEW_CALLERS, many)))


def run_phase(box: RunningBox, samples: Sequence[Sample], callers: int, seconds: float) -> Phase:
    watcher = PingWatcher(box.port).start()
    load = Callers(
        box.port, samples, callers, hang_after_s=DEADLINE_S + HANG_MARGIN_S, honour_retry_after=True
    ).start()
    time.sleep(WARM_UP_S)
    began = time.monotonic()
    time.sleep(seconds)
    ended = time.monotonic()
    load.stop()
    watcher.stop()
    right = [reply for reply in load.snapshot() if reply.outcome == RIGHT]
    counted = [reply for reply in right if began <= reply.ended <= ended]
    return Phase(
        callers,
        ended - began,
        len(counted) / (ended - began),
        max((reply.ended - reply.started for reply in right), default=0.0),
        load.outcomes(),
        report.summarize_pings(watcher.pings, began),
        tuple(load.details),
    )
