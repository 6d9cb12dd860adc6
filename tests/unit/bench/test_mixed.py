"""The regime of three models: arrivals that do not wait, and targets computed draw by draw."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from bench.mixed import LIGHT, MEGABYTE, Results, Row, markdown, p99_ratio, targets
from bench.open_loop import arrivals, sequence

ROW = Row("trireme", 0, "light", "bert_base", 4.0, 0.02, 0.03, 60, 0, 0, 5.0, 100 * MEGABYTE)


def rows(contestant: str, light: float, flood: float, rate: float, draw: int = 0) -> list[Row]:
    base = replace(ROW, contestant=contestant, draw=draw)
    return [
        *(replace(base, phase="light", model=model, p99=light) for model in LIGHT),
        *(replace(base, phase="flood", model=model, p99=flood) for model in LIGHT),
        *(replace(base, phase="95%", model=model, rate=rate) for model in ("resnet", *LIGHT)),
    ]


def results(*found: list[Row], **more: Any) -> Results:
    about = {row.contestant: "a service" for part in found for row in part}
    return Results({"machine": "2 cores"}, {}, about, [row for part in found for row in part], **more)


def test_arrivals_come_as_often_as_the_rate_says_and_alike_for_the_same_seed() -> None:
    moments = list(arrivals(50.0, 40.0, random.Random(1)))
    assert len(moments) == pytest.approx(2000, rel=0.1)
    assert moments == sorted(moments) == list(arrivals(50.0, 40.0, random.Random(1)))


def test_a_round_has_each_model_as_often_as_its_share() -> None:
    assert sorted(sequence({"a": 3, "b": 1})) == ["a", "a", "a", "b"]


def test_the_rise_is_of_each_draw_and_endless_where_nobody_was_answered() -> None:
    found = results(*(rows("trireme", 0.1, flood, 5.0, draw) for draw, flood in enumerate((0.2, 0.3, 0.9))))
    assert p99_ratio(found, "trireme", "bert_base") == pytest.approx(3.0)
    starved = [replace(row, answers=0, p99=0.0) if row.phase == "flood" else row for row in found.rows]
    assert p99_ratio(replace(found, rows=starved), "trireme", "bert_base") == float("inf")


def test_the_targets_compare_with_the_best_of_the_others() -> None:
    found = results(
        rows("trireme", 0.1, 0.2, 5.0),
        rows("quick", 0.1, 0.5, 6.0),
        rows("calm", 0.1, 0.3, 4.0),
        single=[{"resnet": 60 * MEGABYTE, "bert_base": 50 * MEGABYTE}],
    )
    assert [row[1:] for row in targets(found)] == [
        ("below 3.0 (calm)", "2.0", "met"),
        ("below 3.0 (calm)", "2.0", "met"),
        ("at least 18.0 (quick)", "15.0", "missed"),
        ("below 110", "100", "met"),
    ]
    assert "| MB, against three boxes | below 110 | 100 | met |" in markdown(found, "")
