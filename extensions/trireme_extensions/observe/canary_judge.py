"""Compare a model's two versions while a canary gets a share of the requests: errors, times and a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm.metrics import FINE_BUCKETS
from sm.metrics.series import read_families
from sm.models.canary import CANARY, STABLE
from sm.models.versions import PASSED, UNDECIDED, WORSE, Counts
from trireme_extensions.observe.counts import percentile

SERIES = "trireme_variant_duration_seconds"
#: Good answers that each version must have given before their times are compared.
MIN_REQUESTS = 100
#: Failed or slow requests without which no version counts as worse.
MIN_WORSE = 5
#: Standard deviations by which a share of failed or slow requests is clearly higher; below the second one it
#: is not higher. The shares are compared again and again, so the first is far out.
CLEARLY, SLIGHTLY = 4.0, 2.0
#: Requests are slow if they take longer than the old version's p99 times this.
SLOWER = 1.25


def count(folder: Path, model: str) -> Counts:
    """Return what the workers have counted since the start of the box."""
    counts: dict[str, dict[str, float]] = {}
    for family in read_families(folder):
        for sample in family.samples if family.name == SERIES else ():
            labels = sample.labels
            if labels["model"] == model and "le" in labels:
                key = f"{labels['variant']} {labels['status']}"
                counts.setdefault(key, {})[labels["le"]] = sample.value
    return counts


@dataclass(frozen=True)
class Variant:
    """The answers of one version; ``times``: the good ones by upper bound in seconds, cumulative."""

    requests: int
    errors: int
    times: Mapping[float, float]

    @classmethod
    def of(cls, name: str, now: Counts, before: Counts) -> Variant:
        def since(status: str) -> dict[float, float]:
            key = f"{name} {status}"
            old = before.get(key, {})
            return {float(bound): total - old.get(bound, 0.0) for bound, total in now.get(key, {}).items()}

        good, bad = since("2xx"), since("5xx")  # see sm.models.canary.says_failed
        errors = bad.get(math.inf, 0.0)
        return cls(round(good.get(math.inf, 0.0) + errors), round(errors), good)

    def slower_than(self, seconds: float) -> int:
        """Return how many answers took longer, to the next bound of the series."""
        bound = next((bound for bound in FINE_BUCKETS if bound >= seconds), math.inf)
        return round(self.times.get(math.inf, 0.0) - self.times.get(bound, 0.0))

    def p99(self) -> float:
        return percentile(self.times, 0.99) or 0.0

    def describe(self) -> dict[str, Any]:
        times = {name: percentile(self.times, share) for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99))}
        return {
            "requests": self.requests,
            "errors": self.errors,
            "error_rate": round(self.errors / self.requests, 4) if self.requests else None,
            **{name: None if time is None else round(1000 * time, 2) for name, time in times.items()},
        }


def judge(folder: Path, model: str, before: Counts) -> tuple[Counts, dict[str, Any]]:
    """Count the answers of a model's two versions, and compare them; the row of ``sm.canary_judges``."""
    now = count(folder, model)
    return now, compare(now, before)


def compare(now: Counts, before: Counts) -> dict[str, Any]:
    """Return the numbers of both versions since the canary began, the verdict, and its reason."""
    stable, canary = (Variant.of(name, now, before) for name in (STABLE, CANARY))
    verdict, reason = verdict_of(stable, canary)
    return {
        "verdict": verdict,
        "reason": reason,
        STABLE: stable.describe(),
        CANARY: canary.describe(),
    }


def verdict_of(stable: Variant, canary: Variant) -> tuple[str, str]:
    """Return the verdict about the new version, and the reason in words."""
    failing = _excess(canary.errors, canary.requests, stable.errors, stable.requests)
    if canary.errors >= MIN_WORSE and failing > CLEARLY:
        rates = (f"{each.errors} of {each.requests} requests" for each in (canary, stable))
        return WORSE, "it fails more: {}; the old version {}".format(*rates)
    good = canary.requests - canary.errors, stable.requests - stable.errors
    if min(good) < MIN_REQUESTS:
        return UNDECIDED, f"{good[0]} and {good[1]} good answers; each version needs {MIN_REQUESTS}"
    limit = SLOWER * stable.p99()
    slow = canary.slower_than(limit), stable.slower_than(limit)
    slower = _excess(slow[0], good[0], slow[1], good[1])
    if slow[0] >= MIN_WORSE and slower > CLEARLY:
        times = (f"{1000 * each.p99():.3g} ms" for each in (canary, stable))
        return WORSE, "it is slower: p99 {}; the old version {}".format(*times)
    if max(failing, slower) < SLIGHTLY:
        return PASSED, "it is not worse than the old version"
    return UNDECIDED, "it may be worse than the old version: more requests will show it"


def _excess(bad: int, of: int, other_bad: int, of_other: int) -> float:
    """Return by how many standard deviations the first share is higher; 0 if one of them has no requests."""
    if not of or not of_other:
        return 0.0
    share = (bad + other_bad) / (of + of_other)
    deviation = math.sqrt(share * (1 - share) * (1 / of + 1 / of_other))
    return (bad / of - other_bad / of_other) / deviation if deviation else 0.0
