"""The models' generations and the heartbeat, which a box's processes share through a file."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm.model_processes.generations import REPORTED, SharedGeneration, now
from sm.settings import HERE
from tests.support.boxes import wait_until

pytestmark = pytest.mark.core


@pytest.fixture
def supervisor(tmp_path: Path) -> SharedGeneration:
    return SharedGeneration.create(tmp_path / "generation")


def test_a_generation_ended_by_one_process_has_ended_for_all(supervisor: SharedGeneration) -> None:
    code = (
        "import sys; from pathlib import Path; from sm.model_processes.generations import SharedGeneration\n"
        "assert SharedGeneration(Path(sys.argv[1])).report('echo', 0)"
    )
    subprocess.run([sys.executable, "-c", code, str(supervisor.path)], check=True, cwd=HERE)
    assert supervisor.number("echo") == 1
    # Its calls wait until the supervisor has decided.
    assert (supervisor.refusal("echo"), supervisor.out_since("echo")) == (REPORTED, 0.0)
    assert supervisor.ticket(("echo",)) is None
    assert not supervisor.report("echo", 0)
    supervisor.decide("echo", 0, crashed=True)
    supervisor.refuse("echo", 0)
    assert supervisor.out_since("echo") == pytest.approx(now(), abs=60)
    assert supervisor.crashed("echo", 0)
    assert supervisor.ticket(("echo",)) is not None
    # The neighbour serves on.
    assert (supervisor.number("resnet"), supervisor.out_since("resnet")) == (0, 0.0)


def test_calls_that_began_during_a_reload_belong_to_no_later_generation(supervisor: SharedGeneration) -> None:
    """They went to the processes before: a late report about those must not end the new ones."""
    supervisor.take_out("echo", now())
    during = supervisor.number("echo")
    assert supervisor.admit("echo", supervisor.out_since("echo"))
    assert not supervisor.report("echo", during)
    assert supervisor.out_since("echo") == 0.0


def test_only_the_end_of_a_process_that_serves_takes_a_model_out(supervisor: SharedGeneration) -> None:
    old = now()
    assert supervisor.take_out("echo", old)
    assert not supervisor.take_out("echo", old), "the other process of the same load"
    assert supervisor.admit("echo", supervisor.out_since("echo"))
    assert not supervisor.take_out("echo", old), "what is left of the load before"
    assert supervisor.out_since("echo") == 0.0
    wait_until(lambda: supervisor.take_out("echo", now()))


def test_a_new_triton_admits_all_models(supervisor: SharedGeneration) -> None:
    supervisor.take_out("echo", now())
    supervisor.refuse("echo")
    supervisor.admit_all()
    assert not supervisor.refusal("echo")
    assert supervisor.out_since("echo") == 0.0
    # What the Triton before still answers is refused.
    assert supervisor.number("echo") == 1


def test_setting_the_clock_forward_ages_the_heartbeat(
    supervisor: SharedGeneration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's time-outs use the same clock, so the heartbeat must age with them."""
    supervisor.beat()
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    assert supervisor.heartbeat_age() > 59
