"""Processes are stopped for seconds: no caller gets another caller's answer."""

from __future__ import annotations

import pytest

from tests.support.boxes import RunningBox
from tests.support.faults.attack import Fault, attack
from tests.support.faults.inputs import Sample
from tests.support.faults.stalls import make_stalls

SEED = 1
STALLS = list(make_stalls(6, SEED, longest_s=3.0))


@pytest.mark.parametrize("fault", STALLS, ids=[fault.name for fault in STALLS])
def test_every_answer_after_a_stall_is_the_callers_own(
    box: RunningBox, samples: list[Sample], fault: Fault
) -> None:
    row = attack(box, samples, fault, seed=SEED)
    assert row.wrong == 0, row.details
    assert row.hangs == 0
    assert row.recovery_s is not None, row
