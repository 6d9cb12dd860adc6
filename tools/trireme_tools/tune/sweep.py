"""Decide which settings ``sm tune`` measures, in which order, and which one is best."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter

#: Rates within this share of the best count as equal: the simplest setting wins.
EQUAL_RATE_SHARE = 0.03
#: No more callers are tried if the rate grows by less than this share.
MIN_GROWTH = 0.02
#: Microseconds that Triton may wait for a batch to fill.
DELAYS_US = (1000, 5000)


def format_count(number: int, noun: str) -> str:
    """``1 caller``, ``2 callers``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Batching:
    """Triton's dynamic batching: it waits ``delay_us`` for one of the sizes; none given: for any."""

    preferred_sizes: tuple[int, ...] = ()
    delay_us: int = 0


@dataclass(frozen=True)
class Setting:
    """The tuned fields of a model's configuration.

    ``batching``: None if it is off. ``threads``: of each instance on the CPU target; 0 for its share of the
    cores.
    """

    instances: int
    batching: Batching | None = None
    threads: int = 0

    def __str__(self) -> str:
        instances = format_count(self.instances, "instance")
        if self.threads:
            instances += f" of {format_count(self.threads, 'thread')}"
        if self.batching is None:
            return f"{instances}, no batching"
        sizes = " or ".join(map(str, self.batching.preferred_sizes)) or "any size"
        return f"{instances}, batches of {sizes}, {self.batching.delay_us / 1000:g} ms delay"


@dataclass(frozen=True)
class Point:
    """One measurement of a setting with a number of callers. Times are in seconds."""

    setting: Setting
    callers: int
    answers: int = 0
    errors: int = 0
    seconds: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    #: The most frequent error of the requests that failed.
    error: str = ""
    #: Why there is no measurement.
    failure: str = ""

    @property
    def rate(self) -> float:
        """Successful answers per second."""
        return self.answers / self.seconds if self.seconds else 0.0

    @property
    def is_valid(self) -> bool:
        """True if the setting may be chosen: every request was answered."""
        return not self.failure and not self.errors and self.answers > 0


@dataclass(frozen=True)
class Space:
    """The settings that may be tried.

    ``batch``: the model's max_batch_size, 0 if it takes no batches. ``threads``: empty if the model has no
    such parameter.
    """

    present: Setting
    instances: tuple[int, ...]
    batch: int
    callers: tuple[int, ...]
    delays_us: tuple[int, ...] = DELAYS_US
    threads: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The largest possible number of settings."""
        coarse = list(dict.fromkeys(self._coarse()))
        return len(coarse) + len(
            [setting for setting in self._refined(self.present) if setting not in coarse]
        )

    def next(self, measured: Sequence[Point], bound: float) -> Setting | None:
        """Return the next setting: each instance count with and without batching, then the rest.

        Threads, sizes and delays are tried with the best setting so far.
        """
        measured_settings = {point.setting for point in measured}
        for setting in self._coarse():
            if setting not in measured_settings:
                return setting
        best = choose(measured, bound) or lowest_p99(measured)
        if best is None:
            return None
        return next(
            (setting for setting in self._refined(best.setting) if setting not in measured_settings), None
        )

    def _coarse(self) -> Iterator[Setting]:
        yield self.present
        for count in self.instances:
            yield Setting(count)
            if self.batch > 1:
                yield Setting(count, Batching())

    def _refined(self, best: Setting) -> Iterator[Setting]:
        for threads in self.threads:
            yield replace(best, threads=threads)
        if self.batch <= 1:
            return
        sizes = dict.fromkeys([(), (self.batch,), tuple(sorted({max(2, self.batch // 2), self.batch}))])
        for delay in self.delays_us:
            for preferred in sizes:
                yield replace(best, batching=Batching(preferred, delay))


def has_peaked(points: Sequence[Point], bound: float) -> bool:
    """True if more callers would not help a setting with these points, sorted by the number of callers."""
    last = points[-1]
    if not last.is_valid or last.p99 > bound:
        return True
    # One slow measurement may be chance; two are not.
    *before, second_last, newest = [0.0, *(point.rate for point in points)]
    return bool(before) and max(second_last, newest) < max(before) * (1 + MIN_GROWTH)


def choose(points: Sequence[Point], bound: float) -> Point | None:
    """Choose the highest rate with a p99 within ``bound`` seconds; of equal rates, the simplest setting."""
    within = [point for point in points if point.is_valid and point.p99 <= bound]
    if not within:
        return None
    most = max(point.rate for point in within)
    return min((point for point in within if point.rate >= most * (1 - EQUAL_RATE_SHARE)), key=_complexity)


def lowest_p99(points: Sequence[Point]) -> Point | None:
    """Return the point with the lowest p99, for when no point is within the bound."""
    return min(
        (point for point in points if point.is_valid),
        key=lambda point: (point.p99, -point.rate),
        default=None,
    )


def _complexity(point: Point) -> tuple[Any, ...]:
    """Return a sort key: fewer instances (less memory) first, fewer threads, no batching, then less delay."""
    batching = point.setting.batching
    waits = (False, 0, 0) if batching is None else (True, batching.delay_us, len(batching.preferred_sizes))
    return (point.setting.instances, point.setting.threads, *waits, point.p99, point.callers)


def dumps(points: Sequence[Point], **about: Any) -> str:
    """Write the points and the members ``about`` as JSON."""
    return json.dumps({**about, "points": [asdict(point) for point in points]}, indent=1) + "\n"


def loads(text: str) -> tuple[list[Point], dict[str, Any]]:
    """Read what :func:`dumps` wrote. Raises ValueError or KeyError."""
    document = json.loads(text)
    return TypeAdapter(list[Point]).validate_python(document.pop("points")), document
