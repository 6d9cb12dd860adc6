"""The targets are computed from medians, and from no answer that was wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.measuring import Record
from bench.ratios import ratios
from bench.results import Results
from bench.table import markdown


def record(contestant: str, rate: float, draw: int = 0, **more: Any) -> Record:
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
        **more,
    }
    return Record(contestant=contestant, draw=draw, rate=rate, **values)


@pytest.fixture
def results() -> Results:
    """The box is 5 times as fast as the reference in the median, 4 ms of its 2 / 100 s are decoding."""
    rows = [record("trireme", rate, draw) for draw, rate in enumerate((500.0, 90.0, 900.0))]
    rows += [record("reference", rate, draw) for draw, rate in enumerate((100.0, 120.0, 10.0))]
    rows.append(record("triton", 5000.0, form="ready", processor=0.1))
    rows += [record("fastapi", 1000.0, wrong=3), record("litserve", 400.0)]
    about = {name: name for name in ("trireme", "reference", "fastapi", "litserve", "triton")}
    return Results({"machine": "some"}, {"draws": "3"}, about, rows, decoding={"resnet": 0.0004})


def test_the_targets(results: Results) -> None:
    reached = {(ratio.what, ratio.against): ratio for ratio in ratios(results) if ratio.reached is not None}
    rate = "instant, resnet, 8 callers: trireme, answers a second"
    assert reached[rate, "reference"].reached == 5
    assert reached[rate, "reference"].met
    # The other peer is faster, but some of its answers were wrong.
    assert reached[rate, "litserve"].reached == 1.25
    cost = reached["instant, resnet, 8 callers: trireme, processor time an answer less decoding", "triton"]
    assert cost.reached == pytest.approx((0.002 - 0.0004) / 0.001)
    assert cost.met is False


def test_the_table_shows_what_failed_and_the_range(results: Results, tmp_path: Path) -> None:
    results.missing["rayserve"] = "It did not start."
    results.save(tmp_path / "kept.json")
    page = markdown(Results.load(tmp_path / "kept.json"))
    assert "| trireme | 8 | 500.0 (90–900) |" in page
    assert "| fastapi | 8 | 1,000.0, **3 wrong or lost** |" in page
    assert "Not measured: rayserve. It did not start." in page
