"""Killed processes, full disks and stops: right answers return, and nobody gets another request's answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.boxes import RunningBox
from tests.support.faults.attack import Fault, attack
from tests.support.faults.boxes import attacked_box
from tests.support.faults.faults import make_faults
from tests.support.faults.inputs import Sample

SEED, RESTARTS = 1, 1
FAULTS = {fault.name: fault for fault in make_faults(SEED, RESTARTS)}
#: The long form kills the others too: these tests shall end within minutes.
KILLED = ("nginx's worker", "the data plane's master", "a stub of yolov5")


@pytest.mark.parametrize("name", [f"{name} killed" for name in KILLED])
def test_right_answers_return_after_a_process_is_killed(
    box: RunningBox, samples: list[Sample], name: str
) -> None:
    attack_and_check(box, samples, FAULTS[name])


@pytest.fixture(scope="module")
def small_box(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    with attacked_box(tmp_path_factory.mktemp("small"), repository, "small disks") as started:
        yield started


@pytest.mark.parametrize("name", ["full /dev/shm", "full /tmp, and a data worker killed"])
def test_right_answers_return_after_a_full_disk(
    small_box: RunningBox, samples: list[Sample], name: str
) -> None:
    attack_and_check(small_box, samples, FAULTS[name])


def test_a_stop_loses_no_request_and_the_next_start_serves(box: RunningBox, samples: list[Sample]) -> None:
    attack_and_check(box, samples, FAULTS["SIGTERM twice, and started again"])


def attack_and_check(box: RunningBox, samples: list[Sample], fault: Fault) -> None:
    row = attack(box, samples, fault, seed=SEED)
    assert not row.misses(timed=False), row.details
