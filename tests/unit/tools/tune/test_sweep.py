"""The choice depends on the measured points alone: on recorded sweeps of real models, and on made-up ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm.tools.tune.sweep import (
    EQUAL_RATE_SHARE,
    Batching,
    Point,
    Setting,
    Space,
    choose,
    dumps,
    has_peaked,
    loads,
    lowest_p99,
)

RECORDED = Path(__file__).parent / "recorded"
ONE, TWO = Setting(1), Setting(2)
BATCHED = Setting(1, Batching())


def point(setting: Setting, rate: float, p99: float, callers: int = 1, errors: int = 0) -> Point:
    return Point(
        setting, callers, answers=round(rate * 10), seconds=10.0, p50=p99 / 2, p99=p99, errors=errors
    )


@pytest.mark.parametrize(
    ("points", "chosen"),
    [
        # The most answers a second within the bound, whatever is beyond it.
        ([point(ONE, 10, 0.1), point(TWO, 20, 0.15), point(BATCHED, 40, 0.3)], 1),
        # Within a few per cent the fewest instances win, then no batching, then the shortest delay.
        ([point(TWO, 20.2, 0.1), point(ONE, 20, 0.15)], 1),
        ([point(BATCHED, 20.2, 0.1), point(ONE, 20, 0.15)], 1),
        ([point(Setting(1, Batching((), 5000)), 20.2, 0.1), point(BATCHED, 20, 0.15)], 1),
        # The same setting with fewer milliseconds.
        ([point(ONE, 20, 0.15, 8), point(ONE, 20, 0.1, 4)], 1),
        # A failed request or a failed load is no result.
        ([point(TWO, 90, 0.1, errors=1), Point(BATCHED, 1, failure="no room"), point(ONE, 10, 0.1)], 2),
    ],
)
def test_the_choice_among_points(points: list[Point], chosen: int) -> None:
    assert choose(points, 0.2) == points[chosen]
    assert choose(points[::-1], 0.2) == points[chosen]


def test_where_nothing_keeps_the_bound_the_nearest_is_known() -> None:
    points = [point(ONE, 10, 0.5), point(TWO, 8, 0.3), Point(BATCHED, 1, failure="no room")]
    assert choose(points, 0.2) is None
    assert lowest_p99(points) == points[1]
    assert choose([], 0.2) is lowest_p99([]) is None


@pytest.mark.parametrize("name", ["resnet", "yolov5", "bert_base"])
@given(order=st.randoms(use_true_random=False), bound=st.sampled_from([0.05, 0.2, 0.5, 1.0, 5.0]))
def test_the_choice_of_a_recorded_sweep_does_not_depend_on_its_order(
    name: str, order: object, bound: float
) -> None:
    points, about = loads((RECORDED / f"{name}.json").read_text())
    assert about["client"] == name
    shuffled = list(points)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    best = choose(shuffled, bound)
    assert best == choose(points, bound)
    if best is None:
        assert all(each.p99 > bound for each in points if each.is_valid)
    else:
        within = [each.rate for each in points if each.is_valid and each.p99 <= bound]
        assert best.p99 <= bound
        assert best.rate >= max(within) * (1 - EQUAL_RATE_SHARE)


def test_a_sweep_is_read_as_it_was_written() -> None:
    points = [point(BATCHED, 10, 0.1), Point(Setting(3, Batching((4, 8), 100)), 2, failure="no room")]
    assert loads(dumps(points, model="m")) == (points, {"model": "m"})


def test_more_callers_are_tried_until_they_are_no_use() -> None:
    grows = [point(ONE, 10, 0.1, 1), point(ONE, 15, 0.12, 2)]
    assert not has_peaked(grows[:1], 0.2)
    assert not has_peaked(grows, 0.2)
    flat = [*grows, point(ONE, 15, 0.15, 4)]
    assert not has_peaked(flat, 0.2), "one measurement may be slow by chance"
    assert has_peaked([*flat, point(ONE, 15, 0.19, 8)], 0.2)
    assert has_peaked([*grows, point(ONE, 20, 0.3, 4)], 0.2), "it is over the bound"
    assert has_peaked([point(ONE, 20, 0.1, errors=1)], 0.2)
    assert has_peaked([Point(ONE, 1, failure="no room")], 0.2)


def test_every_setting_is_proposed_once_and_the_best_is_refined() -> None:
    space = Space(Setting(3), (1, 2), 8, (1,))
    measured: list[Point] = []
    while (setting := space.next(measured, 0.2)) is not None:
        measured.append(point(setting, 100 if setting == Setting(2, Batching()) else 10, 0.1))
        assert len(measured) <= space.size
    tried = [each.setting for each in measured]
    assert len(set(tried)) == len(tried) == space.size
    assert tried[:5] == [Setting(3), Setting(1), Setting(1, Batching()), TWO, Setting(2, Batching())]
    assert {each.instances for each in tried[5:]} == {2}
    assert {each.batching.delay_us for each in tried[5:] if each.batching} == {1000, 5000}
    assert (8,) in {each.batching.preferred_sizes for each in tried[5:] if each.batching}


def test_a_model_without_batches_is_not_batched() -> None:
    space = Space(ONE, (1, 2), 0, (1,))
    measured: list[Point] = []
    while (setting := space.next(measured, 0.2)) is not None:
        measured.append(point(setting, 10, 0.1))
    assert [each.setting for each in measured] == [ONE, TWO]


def test_settings_that_all_fail_end_the_search() -> None:
    space = Space(ONE, (1, 2), 8, (1,))
    measured: list[Point] = []
    while (setting := space.next(measured, 0.2)) is not None:
        measured.append(replace(Point(setting, 1), failure="no room"))
    assert len(measured) == 4
