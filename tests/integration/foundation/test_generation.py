"""The generation and the heartbeat, which a box's processes share through a file."""

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


def test_a_generation_put_in_doubt_by_one_process_is_in_doubt_for_all(supervisor: SharedGeneration) -> None:
    supervisor.advance()
    code = (
        "import sys; from pathlib import Path; from sm.generation import SharedGeneration\n"
        "SharedGeneration(Path(sys.argv[1])).put_in_doubt(1)"
    )
    subprocess.run([sys.executable, "-c", code, str(supervisor.path)], check=True, cwd=HERE)
    assert supervisor.is_in_doubt(1)


def test_the_next_generation_is_trusted_and_the_doubtful_one_is_not(
    supervisor: SharedGeneration,
) -> None:
    supervisor.advance()
    supervisor.put_in_doubt(1)
    supervisor.advance()
    assert supervisor.is_in_doubt(1)
    assert not supervisor.is_in_doubt(2)


def test_a_reused_doubt_flag_is_cleared(supervisor: SharedGeneration) -> None:
    supervisor.advance()
    supervisor.put_in_doubt(1)
    for _ in range(DOUBT_FLAGS):
        supervisor.advance()
    assert supervisor.current == 1 + DOUBT_FLAGS
    assert not supervisor.is_in_doubt(supervisor.current)


def test_the_heartbeat_ages_until_the_next_one(supervisor: SharedGeneration) -> None:
    supervisor.beat()
    time.sleep(0.05)
    age = supervisor.heartbeat_age()
    assert age >= 0.05
    beat_at = time.time()
    supervisor.beat()
    assert supervisor.heartbeat_age() <= time.time() - beat_at + 0.01


def test_setting_the_clock_forward_ages_the_heartbeat(
    supervisor: SharedGeneration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's time-outs use the same clock, so the heartbeat must age with them."""
    supervisor.beat()
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    assert supervisor.heartbeat_age() > 59


def test_the_heartbeat_limit_is_shorter_than_the_standstill_limit() -> None:
    assert MAX_HEARTBEAT_AGE_S < STANDSTILL_S


def test_the_file_is_private_to_its_user(supervisor: SharedGeneration) -> None:
    assert supervisor.path.stat().st_mode & 0o777 == 0o600
