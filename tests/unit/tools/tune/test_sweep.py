"""The best setting is chosen from measured points."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pytest

from trireme_tools.cost.prices import dated_prices, request_cost
from trireme_tools.tune.sweep import Batching, Point, Setting, Space, choose, dumps, has_peaked, loads

ONE, TWO = Setting(1), Setting(2)
BATCHED = Setting(1, Batching())


def new_point(setting: Setting, rate: float, p99: float, callers: int = 1, errors: int = 0) -> Point:
    return Point(
        setting, callers, answers=round(rate * 10), seconds=10.0, p50=p99 / 2, p99=p99, errors=errors
    )


def search(space: Space, measure: Callable[[Setting], Point]) -> list[Point]:
    """Measure what the space proposes until it proposes nothing more."""
    measured: list[Point] = []
    while (setting := space.next(measured, 0.2)) is not None:
        measured.append(measure(setting))
        assert len(measured) <= space.size
    return measured


@pytest.mark.parametrize(
    ("points", "best"),
    [
        # The most answers a second within the latency bound win.
        ([new_point(ONE, 10, 0.1), new_point(TWO, 20, 0.15), new_point(BATCHED, 40, 0.3)], 1),
        # Among nearly equal rates the fewest instances win, then no batching, then the shortest delay.
        ([new_point(TWO, 20.2, 0.1), new_point(ONE, 20, 0.15)], 1),
        ([new_point(BATCHED, 20.2, 0.1), new_point(ONE, 20, 0.15)], 1),
        ([new_point(Setting(1, Batching((), 5000)), 20.2, 0.1), new_point(BATCHED, 20, 0.15)], 1),
        # For the same setting and rate the lower latency wins.
        ([new_point(ONE, 20, 0.15, 8), new_point(ONE, 20, 0.1, 4)], 1),
        # A point with failed requests or a failed load is never chosen.
        ([new_point(TWO, 90, 0.1, errors=1), new_point(ONE, 10, 0.1)], 1),
        ([Point(BATCHED, 1, failure="no room"), new_point(ONE, 10, 0.1)], 1),
        ([new_point(ONE, 10, 0.3), new_point(TWO, 20, 0.1, errors=1)], None),
    ],
)
def test_the_best_point_is_chosen_whatever_the_order(points: list[Point], best: int | None) -> None:
    expected = None if best is None else points[best]
    assert choose(points, 0.2) == choose(points[::-1], 0.2) == expected


def test_more_callers_are_tried_until_the_rate_no_longer_grows() -> None:
    growing = [new_point(ONE, 10, 0.1, 1), new_point(ONE, 15, 0.12, 2)]
    assert not has_peaked(growing[:1], 0.2)
    assert not has_peaked(growing, 0.2)
    flat = [*growing, new_point(ONE, 15, 0.15, 4)]
    assert not has_peaked(flat, 0.2), "one measurement may be slow by chance"
    assert has_peaked([*flat, new_point(ONE, 15, 0.19, 8)], 0.2)
    assert has_peaked([*growing, new_point(ONE, 20, 0.3, 4)], 0.2), "it is over the bound"
    assert has_peaked([new_point(ONE, 20, 0.1, errors=1)], 0.2)
    assert has_peaked([Point(ONE, 1, failure="no room")], 0.2)


def test_every_setting_is_proposed_once_and_the_best_one_refined() -> None:
    space, best = Space(Setting(3), (1, 2), 8, (1,)), Setting(2, Batching())
    measured = search(space, lambda setting: new_point(setting, 100 if setting == best else 10, 0.1))
    tried = [point.setting for point in measured]
    assert len(set(tried)) == len(tried) == space.size
    assert tried[:5] == [Setting(3), ONE, BATCHED, TWO, best]
    refined = [setting.batching for setting in tried[5:] if setting.batching]
    assert {setting.instances for setting in tried[5:]} == {2}
    assert {batching.delay_us for batching in refined} == {1000, 5000}
    assert (8,) in {batching.preferred_sizes for batching in refined}


def test_threads_are_tried_with_the_best_instance_count_and_survive_the_file() -> None:
    space = Space(ONE, (1, 2), batch=0, callers=(1,), threads=(1, 2))
    measured = search(
        space, lambda setting: new_point(setting, 10 * setting.instances + setting.threads, 0.1)
    )
    tried = [(point.setting.instances, point.setting.threads) for point in measured]
    assert tried == [(1, 0), (2, 0), (2, 1), (2, 2)]
    best = choose(measured, 0.2)
    assert best is not None
    assert str(best.setting) == "2 instances of 2 threads, no batching"
    assert loads(dumps(measured))[0] == measured


def test_the_cost_of_a_million_requests_follows_from_rate_and_hourly_price() -> None:
    cost = request_cost("ml.m5.xlarge", "us-east-1", 100.0, dated_prices().of)
    assert (cost.requests_per_hour, cost.hourly, cost.per_million) == (
        360_000,
        Decimal("0.23"),
        Decimal("0.64"),
    )
