"""The regime of three models: arrivals that do not wait, and targets computed draw by draw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.mixed import LIGHT, MEGABYTE, Results, Row, markdown, p99_ratio, targets

BASE_ROW = Row("trireme", 0, "light", "bert_base", 4.0, 0.02, 0.03, 60, 0, 0, 5.0, 100 * MEGABYTE)


def contestant_rows(contestant: str, light: float, flood: float, rate: float, draw: int = 0) -> list[Row]:
    base_row = replace(BASE_ROW, contestant=contestant, draw=draw)
    return [
        *(replace(base_row, phase="light", model=model, p99=light) for model in LIGHT),
        *(replace(base_row, phase="flood", model=model, p99=flood) for model in LIGHT),
        *(replace(base_row, phase="95%", model=model, rate=rate) for model in ("resnet", *LIGHT)),
    ]


def results_of(*row_lists: list[Row], **fields: Any) -> Results:
    descriptions = {row.contestant: "a service" for rows in row_lists for row in rows}
    return Results(
        {"machine": "2 cores"}, {}, descriptions, [row for rows in row_lists for row in rows], **fields
    )


def test_the_p99_ratio_is_the_median_of_the_draws_and_infinite_without_answers() -> None:
    results = results_of(
        *(contestant_rows("trireme", 0.1, flood, 5.0, draw) for draw, flood in enumerate((0.2, 0.3, 0.9)))
    )
    assert p99_ratio(results, "trireme", "bert_base") == pytest.approx(3.0)
    unanswered_rows = [
        replace(row, answers=0, p99=0.0) if row.phase == "flood" else row for row in results.rows
    ]
    assert p99_ratio(replace(results, rows=unanswered_rows), "trireme", "bert_base") == float("inf")


def test_targets_compare_with_the_best_other_contestant() -> None:
    results = results_of(
        contestant_rows("trireme", 0.1, 0.2, 5.0),
        contestant_rows("quick", 0.1, 0.5, 6.0),
        contestant_rows("calm", 0.1, 0.3, 4.0),
        single=[{"resnet": 60 * MEGABYTE, "bert_base": 50 * MEGABYTE}],
    )
    assert [row[1:] for row in targets(results)] == [
        ("below 3.0 (calm)", "2.0", "met"),
        ("below 3.0 (calm)", "2.0", "met"),
        ("at least 18.0 (quick)", "15.0", "missed"),
        ("below 110", "100", "met"),
    ]
    assert "| MB, against three boxes | below 110 | 100 | met |" in markdown(results, "")
