"""Killed and stopped processes: right answers return, and nobody gets another caller's answer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import pytest

from tests.e2e.faults import FULL, SEED
from tests.support.boxes import RunningBox
from tests.support.faults import attack as attacks
from tests.support.faults.attack import ECHO, Fault, Find, attack, make_kill, make_stall
from tests.support.faults.callers import RESET
from tests.support.faults.inputs import DEMO_MODELS, Sample

#: The goal: right answers again within so many seconds of any single fault.
RECOVERY_LIMIT_S = 10.0
#: How to find each process of the box. The supervisor is missing: the box ends with it.
SERVERS = {
    "nginx": "nginx: ",
    "the control plane": "sm.server.control_plane",
    "the data plane": "sm.server.worker",
}
PROCESSES: dict[str, Find] = {
    **{f"the master of {name}": partial(attacks.masters, words=words) for name, words in SERVERS.items()},
    **{f"a worker of {name}": partial(attacks.workers, words=words) for name, words in SERVERS.items()},
    "Triton": attacks.triton,
    **{f"a process of {model}": partial(attacks.model_pids, model=model) for model in (*DEMO_MODELS, ECHO)},
    "the supervisor's guard": attacks.watchdog,
}
GROUPS: dict[str, Find] = {"all model processes": attacks.model_pids, "the whole box": attacks.all_processes}
#: Without FULL, what the boxes of tests/integration do not have.
KILLED = {"a worker of nginx", "a process of yolov5"}
STOPPED = {"a process of resnet", "Triton", *GROUPS}


def make_faults() -> Iterator[Fault]:
    choice = random.Random(SEED)
    for name, find in PROCESSES.items():
        # Callers' connections break with the process that holds them.
        allowed = frozenset({RESET, "502"} if name.endswith("nginx") else ())
        if FULL or name in KILLED:
            # Requests wait for Triton.
            yield Fault(f"{name} killed", make_kill(find), allowed=allowed, unnoticed=name == "Triton")
    for name, find in (PROCESSES | GROUPS).items():
        seconds = round(choice.uniform(1, 10 if FULL else 3), 1)
        stall = make_stall(find, seconds, every=name in GROUPS)
        if FULL or name in STOPPED:
            title = f"{name} stopped for {seconds:g} s"
            yield Fault(title, stall, seconds=seconds, unnoticed=FULL and name == "Triton")


FAULTS = list(make_faults())


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_right_answers_return_after_a_fault(box: RunningBox, samples: list[Sample], fault: Fault) -> None:
    result = attack(box, samples, fault)
    assert not result.misses(), result.details
    assert not FULL or (result.recovery_s or 0) < RECOVERY_LIMIT_S
