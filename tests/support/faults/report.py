"""What one fault did to the callers, as a row of a Markdown table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.support.faults.callers import HANG, PARTLY, RESET, RIGHT, WRONG, Ping, Reply

COLUMNS = (
    "fault",
    "first error after",
    "back to right answers after",
    "resets",
    "hangs",
    "wrong answers",
    "/ping",
    "answers",
)
#: The goal: seconds within which right answers come again after any single fault.
BACK_WITHIN_S = 10.0
#: What the box may say while a part of it is away.
EXPECTED = {RIGHT, PARTLY, "503", "429", "504"}


@dataclass(frozen=True)
class Row:
    """One line of the table. ``None`` for seconds: no error was seen, or right answers never came again."""

    fault: str
    first_error_s: float | None
    back_s: float | None
    outcomes: Counter[str]
    ping: str
    details: tuple[str, ...] = field(default=(), compare=False)
    #: Seconds within which right answers must come again.
    back_within_s: float = BACK_WITHIN_S
    #: What else callers may see after this fault.
    allowed: frozenset[str] = frozenset()

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
        """Where the row misses the goal, in words; not ``timed`` where a machine's other users decide."""
        missed = []
        if self.wrong:
            missed.append(f"{self.wrong} wrong answers")
        if self.hangs:
            missed.append(f"{self.hangs} hangs")
        if self.back_s is None:
            missed.append("right answers did not come again")
        elif timed and self.back_s > self.back_within_s:
            missed.append(f"back after {self.back_s:.1f} s")
        odd = set(self.outcomes) - EXPECTED - self.allowed - {WRONG, HANG}
        if odd:
            missed.append(f"callers saw: {', '.join(sorted(odd))}")
        return missed

    def cells(self) -> list[str]:
        answers = ", ".join(f"{count} × {outcome}" for outcome, count in sorted(self.outcomes.items()))
        return [
            self.fault,
            "no error" if self.first_error_s is None else f"{self.first_error_s:.1f} s",
            "never" if self.back_s is None else f"{self.back_s:.1f} s",
            str(self.resets),
            str(self.hangs),
            str(self.wrong),
            self.ping,
            answers,
        ]


def markdown(rows: Iterable[Row]) -> str:
    return table(COLUMNS, [row.cells() for row in rows])


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def summarize_pings(pings: Sequence[Ping], since: float) -> str:
    """Such as ``503 for 2.1 s; slowest 0.04 s``."""
    seen = [ping for ping in pings if ping.started + ping.seconds >= since]
    if not seen:
        return "not asked"
    slowest = f"slowest {max(ping.seconds for ping in seen):.2f} s"
    lasted: dict[int, float] = defaultdict(float)
    for before, after in pairwise(seen):
        if before.status == after.status:
            lasted[after.status] += after.started + after.seconds - before.started - before.seconds
    said = [
        f"{status or 'no answer'} for {lasted[status]:.1f} s"
        for status in sorted({ping.status for ping in seen} - {200})
    ]
    return "; ".join([*(said or ["200"]), slowest])


def first_error(replies: Sequence[Reply], since: float) -> float | None:
    """Seconds after ``since`` at which the first caller saw something else than the right answer."""
    failures = [reply.ended for reply in replies if reply.failed and reply.ended >= since]
    return max(0.0, min(failures) - since) if failures else None


def back_to_right(replies: Sequence[Reply], models: Iterable[str], since: float) -> float | None:
    """Seconds from ``since``, the fault's end, until each of ``models`` answers right and goes on to.

    For each model that is the first right answer to a request sent after the last failure was seen.
    """
    latest = since
    for model in models:
        its = [reply for reply in replies if reply.model == model]
        failure = max((reply.ended for reply in its if reply.failed), default=since)
        after = [reply.ended for reply in its if not reply.failed and reply.started >= max(since, failure)]
        if not after:
            return None
        if failure > since:
            latest = max(latest, min(after))
    return latest - since
