"""Whatever dies or runs full, right answers come again, and none of another request's before."""

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
#: The others are left to the long form: this one is to be over in minutes.
KILLED = ("nginx's worker", "the data plane's master", "a stub of yolov5")


@pytest.mark.parametrize("name", [f"{name} killed" for name in KILLED])
def test_after_a_death_right_answers_come_again(box: RunningBox, samples: list[Sample], name: str) -> None:
    check(box, samples, FAULTS[name])


@pytest.fixture(scope="module")
def small_box(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    with attacked_box(tmp_path_factory.mktemp("small"), repository, "small disks") as started:
        yield started


@pytest.mark.parametrize("name", ["full /dev/shm", "full /tmp, and a data worker killed"])
def test_a_full_disk_is_survived(small_box: RunningBox, samples: list[Sample], name: str) -> None:
    check(small_box, samples, FAULTS[name])


def test_a_stop_loses_no_request_and_the_next_start_serves(box: RunningBox, samples: list[Sample]) -> None:
    check(box, samples, FAULTS["SIGTERM twice, and started again"])


def check(box: RunningBox, samples: list[Sample], fault: Fault) -> None:
    row = attack(box, samples, fault, seed=SEED)
    assert not row.misses(timed=False), row.details
