"""A stop loses nothing that was accepted, and leaves nothing behind."""

from __future__ import annotations

import base64
import os
import signal
from pathlib import Path

import pytest

from tests.support.boxes import WAIT_TIMEOUT_S, descendants, running_box, wait_until
from tests.support.load import Load, dispatch_body


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def leftovers(identity: str) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"*{identity}*")]


def test_sigterm_under_load_loses_nothing_that_was_accepted(demo: Path, tmp_path: Path, cat: bytes) -> None:
    with running_box(tmp_path, demo) as box:
        identity, processes = box.box_id(), descendants(box.process.pid)
        body = dispatch_body("resnet", base64.b64encode(cat).decode())
        with (
            Load(box.port, body).start(callers=8) as load,
            Load(box.port, dispatch_body("slow", {"seconds": 3.0})).start(2, requests_each=1) as slow,
        ):
            wait_until(lambda: load.outcomes["200"] >= 10, description="answers under load")
            assert box.stop(signal.SIGTERM) == 0
            slow.join()
    assert slow.outcomes == {"200": 2}
    assert set(load.outcomes) <= {"200", "503", "refused", "429"}, load.outcomes
    assert len(load.bodies) == 1
    assert not alive(processes)
    assert not leftovers(identity)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_at_rest_waits_for_nobody_and_leaves_nothing(demo: Path, tmp_path: Path, number: int) -> None:
    """``stop`` gives up long before the time that running invocations would get."""
    with running_box(tmp_path, demo, TRIREME_DRAIN_SECONDS="3600") as box:
        identity, processes = box.box_id(), descendants(box.process.pid)
        assert box.shared_memory_files()
        run = box.run_folder()
        assert box.stop(number) == 0
    assert not alive(processes)
    assert not leftovers(identity)
    assert not run.exists()


def test_a_stop_while_the_models_load_is_clean(demo: Path, tmp_path: Path) -> None:
    with running_box(tmp_path, demo, wait_until_ready=False) as box:
        wait_until(lambda: box.ping()[0] == 503, description="/ping 503 while loading")
        identity, processes = box.box_id(), descendants(box.process.pid)
        assert box.stop() == 0
    assert not alive(processes)
    assert not leftovers(identity)


def test_a_box_that_is_killed_takes_its_processes_along_and_the_next_one_sweeps(
    demo: Path, tmp_path: Path
) -> None:
    with running_box(tmp_path, demo) as box:
        identity, processes = box.box_id(), descendants(box.process.pid)
        os.kill(box.process.pid, signal.SIGKILL)
        box.process.wait(WAIT_TIMEOUT_S)
        wait_until(lambda: not alive(processes), description="the end of every process")
    with running_box(tmp_path, demo):
        assert not leftovers(identity)
