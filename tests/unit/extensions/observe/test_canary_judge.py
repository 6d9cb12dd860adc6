"""What the numbers of two versions say about the new one."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from math import inf

import pytest

from sm.metrics import FINE_BUCKETS
from sm.models.canary import says_failed
from sm.models.versions import PASSED, UNDECIDED, WORSE
from trireme_extensions.observe.canary_judge import MIN_REQUESTS, MIN_WORSE, Variant, compare, verdict_of

BOUNDS = (*FINE_BUCKETS, inf)


def variant(requests: int, errors: int = 0, ms: float = 100, spread: float = 0.3, seed: int = 1) -> Variant:
    """Return a version whose good answers take about ``ms``, spread as most times are."""
    chance = random.Random(seed)
    times = (chance.lognormvariate(0, spread) * ms / 1000 for _ in range(requests - errors))
    return Variant(requests, errors, cumulative(times))


def cumulative(times: Iterable[float]) -> dict[float, float]:
    counts = [0.0] * len(BOUNDS)
    for time in times:
        counts[bisect_left(BOUNDS, time)] += 1
    return dict(zip(BOUNDS, accumulate(counts), strict=True))


@pytest.mark.parametrize(
    ("stable", "canary", "verdict"),
    [
        (variant(900), variant(MIN_REQUESTS, seed=2), PASSED),
        (variant(1800, errors=180), variant(200, errors=20, seed=2), PASSED),
        (variant(900), variant(100, ms=50, seed=2), PASSED),
        (variant(900), variant(MIN_REQUESTS - 1, seed=2), UNDECIDED),
        (variant(99), variant(10_000, seed=2), UNDECIDED),
        (variant(900, errors=9), variant(100, errors=4, seed=2), UNDECIDED),
        (variant(0), variant(0), UNDECIDED),
        (variant(36), variant(MIN_WORSE - 1, errors=MIN_WORSE - 1), UNDECIDED),
        (variant(45), variant(MIN_WORSE, errors=MIN_WORSE), WORSE),
        (variant(900, errors=9), variant(100, errors=12, seed=2), WORSE),
        (variant(900), variant(100, ms=200, seed=2), WORSE),
        (variant(900, errors=900), variant(100, errors=100), UNDECIDED),
    ],
)
def test_a_verdict_is_given_when_it_is_clear(stable: Variant, canary: Variant, verdict: str) -> None:
    assert verdict_of(stable, canary)[0] == verdict


def test_equal_versions_are_seldom_rolled_back_however_often_they_are_compared() -> None:
    """Each time 100 canaries are watched until the box would decide."""
    ends = []
    for seed in range(100):
        chance = random.Random(seed)
        good: dict[str, list[float]] = {"stable": [], "canary": []}
        errors = {"stable": 0, "canary": 0}
        verdict = UNDECIDED
        while verdict == UNDECIDED:
            for _ in range(100):
                name = "canary" if chance.random() < 0.1 else "stable"
                if chance.random() < 0.02:
                    errors[name] += 1
                else:
                    good[name].append(chance.lognormvariate(0, 0.5) / 10)
            stable, canary = (
                Variant(len(good[name]) + errors[name], errors[name], cumulative(good[name])) for name in good
            )
            verdict, _ = verdict_of(stable, canary)
        ends.append(verdict)
    assert ends.count(PASSED) >= 98, ends


def test_only_what_was_counted_since_the_canary_began_is_compared() -> None:
    before = {"stable 2xx": {"0.1": 10.0, "+Inf": 10.0}, "stable 5xx": {"0.1": 0.0, "+Inf": 5.0}}
    now = {
        "stable 2xx": {"0.1": 14.0, "+Inf": 14.0},
        "stable 5xx": {"0.1": 0.0, "+Inf": 6.0},
        "canary 5xx": {"0.1": 1.0, "+Inf": 1.0},
        "canary 4xx": {"0.1": 9.0, "+Inf": 9.0},
    }
    found = compare(now, before)
    assert found["stable"] == {"requests": 5, "errors": 1, "error_rate": 0.2, "p50_ms": 50.0, "p99_ms": 99.0}
    assert (found["canary"]["requests"], found["canary"]["errors"], found["canary"]["p50_ms"]) == (1, 1, None)
    assert found["verdict"] == UNDECIDED


def test_what_callers_send_wrong_decides_nothing() -> None:
    wrong = {f"canary {status // 100}xx": {"+Inf": 40.0} for status in (400, 404, 415, 422, 429, 499)}
    found = compare({"stable 2xx": {"+Inf": 40.0}, **wrong}, {})
    assert (found["canary"]["requests"], found["canary"]["errors"], found["verdict"]) == (0, 0, UNDECIDED)
    assert [says_failed(status) for status in (200, 400, 422, 429, 499)] == [False, None, None, None, None]
    assert all(says_failed(status) for status in (500, 503, 504, 507))
