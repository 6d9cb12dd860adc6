"""Callers who wait as they are told take little of the box's rate."""

from __future__ import annotations

from tests.support.boxes import RunningBox
from tests.support.faults.inputs import Sample
from tests.support.faults.overload import overload

SECONDS, CALLERS = 4.0, 200
#: The goal is 0.8: over seconds, on a machine that others use too, the rate alone differs by more than a fifth.
SHARE = 0.5


def test_an_overload_leaves_the_box_its_rate(box: RunningBox, samples: list[Sample]) -> None:
    done = overload(box, samples, SECONDS, CALLERS)
    assert not done.misses(SHARE), done.markdown()
    assert done.phases[-1].outcomes["429"] > 0
