"""The numbers that a box's processes share: seen by each of them at once."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm.generation import DOUBT_FLAGS, MAX_HEARTBEAT_AGE_S, STANDSTILL_S, SharedGeneration
from sm.settings import HERE


@pytest.fixture
def supervisor(tmp_path: Path) -> SharedGeneration:
    return SharedGeneration.create(tmp_path / "generation")


def test_a_worker_sees_what_the_supervisor_writes(supervisor: SharedGeneration) -> None:
    worker = SharedGeneration(supervisor.path)
    assert worker.current == 0
    supervisor.advance()
    assert worker.current == 1
    supervisor.watch(False)
    assert not worker.is_watched


def test_a_doubt_of_another_process_holds_for_all(supervisor: SharedGeneration) -> None:
    supervisor.advance()
    code = (
        "import sys; from pathlib import Path; from sm.generation import SharedGeneration\n"
        "SharedGeneration(Path(sys.argv[1])).put_in_doubt(1)"
    )
    subprocess.run([sys.executable, "-c", code, str(supervisor.path)], check=True, cwd=HERE)
    assert supervisor.is_in_doubt(1)


def test_the_next_start_of_triton_is_trusted_and_the_doubtful_one_is_not(
    supervisor: SharedGeneration,
) -> None:
    supervisor.advance()
    supervisor.put_in_doubt(1)
    supervisor.advance()
    assert supervisor.is_in_doubt(1)
    assert not supervisor.is_in_doubt(2)


def test_a_number_that_is_used_again_is_trusted_again(supervisor: SharedGeneration) -> None:
    supervisor.advance()
    supervisor.put_in_doubt(1)
    for _ in range(DOUBT_FLAGS):
        supervisor.advance()
    assert supervisor.current == 1 + DOUBT_FLAGS
    assert not supervisor.is_in_doubt(supervisor.current)


def test_a_heartbeat_ages_until_the_next(supervisor: SharedGeneration) -> None:
    supervisor.beat()
    time.sleep(0.05)
    before = supervisor.heartbeat_age()
    assert before >= 0.05
    began = time.time()
    supervisor.beat()
    assert supervisor.heartbeat_age() <= time.time() - began + 0.01


def test_a_clock_that_is_set_forward_ages_the_heartbeat_as_it_does_triton_s_time_outs(
    supervisor: SharedGeneration, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.beat()
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    assert supervisor.heartbeat_age() > 59


def test_a_worker_waits_for_a_heartbeat_before_the_supervisor_calls_it_a_standstill() -> None:
    assert MAX_HEARTBEAT_AGE_S < STANDSTILL_S


def test_the_file_is_for_its_user_alone(supervisor: SharedGeneration) -> None:
    assert supervisor.path.stat().st_mode & 0o777 == 0o600
