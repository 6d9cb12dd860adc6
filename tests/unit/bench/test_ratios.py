"""The targets are computed from medians; contestants with wrong answers do not count."""

from __future__ import annotations

from typing import Any

import pytest

from bench.measuring import Record
from bench.ratios import ratios
from bench.results import Results


def record(contestant: str, rate: float, draw: int = 0, **fields: Any) -> Record:
    values: dict[str, Any] = {
        "regime": "instant",
        "model": "resnet",
        "form": "json",
        "callers": 8,
        "answers": 100,
        "wrong": 0,
        "lost": 0,
        "seconds": 1.0,
        "p50": 0.01,
        "p90": 0.02,
        "p99": 0.03,
        "max": 0.04,
        "processor": 0.2,
        "memory": 900 * 2**20,
        "own_memory": 300 * 2**20,
        **fields,
    }
    return Record(contestant=contestant, draw=draw, rate=rate, **values)


@pytest.fixture
def results() -> Results:
    """In the median the box is 5 times as fast as the reference. Of its 2 ms of processor time per answer, 0.4 ms are decoding."""
    rows = [record("trireme", rate, draw) for draw, rate in enumerate((500.0, 90.0, 900.0))]
    rows += [record("reference", rate, draw) for draw, rate in enumerate((100.0, 120.0, 10.0))]
    rows.append(record("triton", 5000.0, form="ready", processor=0.1))
    rows += [record("fastapi", 1000.0, wrong=3), record("litserve", 400.0)]
    descriptions = {name: name for name in ("trireme", "reference", "fastapi", "litserve", "triton")}
    return Results({"machine": "some"}, {"draws": "3"}, descriptions, rows, decoding={"resnet": 0.0004})


def test_ratios_compare_medians_and_leave_out_contestants_with_wrong_answers(results: Results) -> None:
    reached_ratios = {
        (ratio.what, ratio.against): ratio for ratio in ratios(results) if ratio.reached is not None
    }
    rate_target = "instant, resnet, 8 callers: trireme, answers a second"
    assert reached_ratios[rate_target, "reference"].reached == 5
    assert reached_ratios[rate_target, "reference"].met
    # fastapi is faster, but some of its answers were wrong.
    assert reached_ratios[rate_target, "litserve"].reached == 1.25
    cost = reached_ratios[
        "instant, resnet, 8 callers: trireme, processor time an answer less decoding", "triton"
    ]
    assert cost.reached == pytest.approx((0.002 - 0.0004) / 0.001)
    assert cost.met is False
