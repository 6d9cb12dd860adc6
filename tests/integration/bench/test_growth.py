"""The endurance benchmark tells memory growth from noise, and measures a real box."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import large
from bench.contestants.trireme import One
from bench.endurance import MemorySample, is_flat, measured_growth
from bench.growth import memory_promise
from bench.large import Cost
from bench.many import Turns, ratio
from bench.running import free_port, running
from sm.errors import CommandError

MEGABYTE = 2**20


def memory_samples(*megabytes: float) -> list[MemorySample]:
    """Samples of the box's memory after 10,000 requests, 20,000 and so on."""
    return [
        MemorySample(10_000 * number, round(size * MEGABYTE), round(size * MEGABYTE) // 2)
        for number, size in enumerate(megabytes, 1)
    ]


def test_memory_that_levels_off_counts_as_flat() -> None:
    """One sample that is high by chance is not growth."""
    samples = memory_samples(100, 120, 130, 131, 131, 131, 131, 131, 131.25, 138, 131, 131.25)
    assert measured_growth(samples) == pytest.approx((0.25 * MEGABYTE / 3, 0.25 / 131))
    assert is_flat(samples)
    assert memory_promise(samples).met


@pytest.mark.parametrize("sizes", [(400, 404, 408, 412), (10, 10, 10, 10.9)])
def test_memory_that_grows_does_not_count_as_flat(sizes: tuple[float, ...]) -> None:
    assert not is_flat(memory_samples(*sizes))


@pytest.mark.parametrize("sizes", [(), (400,)])
def test_too_few_samples_are_refused_with_the_option_to_change(sizes: tuple[float, ...]) -> None:
    with pytest.raises(CommandError, match="--minutes"):
        measured_growth(memory_samples(*sizes))


def test_each_turn_is_compared_with_the_same_turn_of_the_other_run() -> None:
    """The machine was three times as fast in the second turn, for both runs."""
    few_models, many_models = Turns((100.0, 300.0, 90.0), ()), Turns((99.0, 294.0, 45.0), ())
    assert ratio(few_models, many_models) == 0.98


def test_the_memory_cost_of_a_large_body_is_measured(tmp_path: Path, contestant_files: Path) -> None:
    box = One(free_port(), "instant", tmp_path, contestant_files)
    with running(box) as root:
        assert root
        costs = list(large.costs(box, root, pause=0))
    assert [cost.size for cost in costs] == [large.LARGE, pytest.approx(large.LARGE, abs=4)]
    for cost in costs:
        # Only an upper bound: memory that a worker has not returned yet may hide a copy.
        assert 0.9 < cost.nginx / cost.size < 1.2
        assert cost.copies < 3
    assert Cost("raw", 100, 180, 90).copies == 2.7
