"""Percentiles of the workers' times."""

from __future__ import annotations

import math

import pytest

from trireme_extensions.observe.counts import percentile

BOUNDS = {0.01: 10.0, 0.1: 90.0, 1.0: 100.0, math.inf: 100.0}


@pytest.mark.parametrize(
    ("bounds", "share", "seconds"),
    [
        *(
            (BOUNDS, *each)
            for each in ((0.05, 0.005), (0.1, 0.01), (0.5, 0.055), (0.9, 0.1), (0.95, 0.55), (1, 1))
        ),
        ({1.0: 1.0, math.inf: 10.0}, 0.99, 1.0),
        ({}, 0.5, None),
        (dict.fromkeys(BOUNDS, 0.0), 0.5, None),
    ],
)
def test_a_percentile_is_interpolated_within_its_bucket(
    bounds: dict[float, float], share: float, seconds: float | None
) -> None:
    assert percentile(bounds, share) == (seconds and pytest.approx(seconds))
