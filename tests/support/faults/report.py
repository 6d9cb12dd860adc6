"""Report what a fault did to the callers, as a row of a Markdown table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.support.faults.callers import HANG, PARTLY_RIGHT, RESET, RIGHT, WRONG, Ping, Reply

COLUMNS = (
    "fault",
    "first error after",
    "back to right answers after",
    "resets",
    "hangs",
    "wrong answers",
    "failed requests",
    "slowest answer",
    "/ping",
    "answers",
)
RECOVERY_LIMIT_S = 10.0  # the goal: right answers again after any single fault
#: Outcomes that callers may see during a fault.
EXPECTED = {RIGHT, PARTLY_RIGHT, "503", "429", "504"}


@dataclass(frozen=True)
class Row:
    """One row of the table. Seconds are ``None`` if there was no error, or no recovery."""

    fault: str
    first_error_s: float | None
    recovery_s: float | None
    outcomes: Counter[str]
    ping: str
    details: tuple[str, ...] = field(default=(), compare=False)
    #: The limit for ``recovery_s``.
    recovery_limit_s: float = RECOVERY_LIMIT_S
    #: Outcomes besides :data:`EXPECTED` that callers may see during this fault.
    allowed: frozenset[str] = frozenset()
    #: Failed requests; None if some may fail.
    failures: int | None = None
    #: Seconds of the slowest request since the fault.
    slowest_s: float = 0.0

    @property
    def wrong(self) -> int:
        return self.outcomes[WRONG]

    @property
    def hangs(self) -> int:
        return self.outcomes[HANG]

    @property
    def resets(self) -> int:
        return self.outcomes[RESET]

    def misses(self, timed: bool = True) -> list[str]:
        """Return a sentence for each goal that is missed. Not ``timed``: ignore the recovery time."""
        missed = []
        if self.wrong:
            missed.append(f"{self.wrong} wrong answers")
        if self.failures:
            missed.append(f"{self.failures} requests failed")
        if self.hangs:
            missed.append(f"{self.hangs} hangs")
        if self.recovery_s is None:
            missed.append("right answers did not come again")
        elif timed and self.recovery_s > self.recovery_limit_s:
            missed.append(f"back after {self.recovery_s:.1f} s")
        unexpected = set(self.outcomes) - EXPECTED - self.allowed - {WRONG, HANG}
        if unexpected:
            missed.append(f"callers saw: {', '.join(sorted(unexpected))}")
        return missed

    def cells(self) -> list[str]:
        answers = ", ".join(f"{count} × {outcome}" for outcome, count in sorted(self.outcomes.items()))
        return [
            self.fault,
            "no error" if self.first_error_s is None else f"{self.first_error_s:.1f} s",
            "never" if self.recovery_s is None else f"{self.recovery_s:.1f} s",
            str(self.resets),
            str(self.hangs),
            str(self.wrong),
            "" if self.failures is None else str(self.failures),
            f"{self.slowest_s:.1f} s",
            self.ping,
            answers,
        ]


def markdown(rows: Iterable[Row]) -> str:
    return table(COLUMNS, [row.cells() for row in rows])


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def summarize_pings(pings: Sequence[Ping], since: float) -> str:
    """Return a summary such as ``503 for 2.1 s; slowest 0.04 s``."""
    recent = [ping for ping in pings if ping.started + ping.seconds >= since]
    if not recent:
        return "not asked"
    slowest = f"slowest {max(ping.seconds for ping in recent):.2f} s"
    seconds_by_status: dict[int, float] = defaultdict(float)
    for before, after in pairwise(recent):
        if before.status == after.status:
            seconds_by_status[after.status] += after.started + after.seconds - before.started - before.seconds
    parts = [
        f"{status or 'no answer'} for {seconds_by_status[status]:.1f} s"
        for status in sorted({ping.status for ping in recent} - {200})
    ]
    return "; ".join([*(parts or ["200"]), slowest])


def first_error(replies: Sequence[Reply], since: float) -> float | None:
    """Return the seconds from ``since`` to the first failure; ``None``: no failure."""
    failures = [reply.ended for reply in replies if reply.failed and reply.ended >= since]
    return max(0.0, min(failures) - since) if failures else None


def recovery_time(replies: Sequence[Reply], models: Iterable[str], since: float) -> float | None:
    """Return the seconds from ``since``, the fault's end, until all of ``models`` answer right for good.

    A model has recovered with the first right answer to a request that was sent after its last failure.
    ``None``: one has not.
    """
    recovered = since
    for model in models:
        of_model = [reply for reply in replies if reply.model == model]
        failure = max((reply.ended for reply in of_model if reply.failed), default=since)
        after = [
            reply.ended for reply in of_model if not reply.failed and reply.started >= max(since, failure)
        ]
        if not after:
            return None
        if failure > since:
            recovered = max(recovered, min(after))
    return recovered - since
