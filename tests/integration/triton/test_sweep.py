"""Shared memory of dead boxes and killed workers is removed, and that of living ones kept."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from sm.run_state import SHARED_MEMORY
from sm.settings import HERE
from sm.triton import server, shared_memory_cleanup
from sm.triton.shared_memory_cleanup import acquire_instance_lock, remove_worker_files, sweep
from sm.triton.transport import Transport
from tests.support.tritons import TritonProcess

LOCK_AND_DIE = """
import os, signal, sys
from pathlib import Path
from sm.triton.shared_memory_cleanup import acquire_instance_lock
lock = acquire_instance_lock("dead", Path(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""
CALL_AND_DIE = """
import os, signal, sys
import numpy as np
from pathlib import Path
from sm.run_state import Box
from sm.settings import Settings
from sm.triton.transport import Transport
transport = Transport(Settings.read({}), Box.load(Path(sys.argv[1])))
outputs = [transport.infer("fixed", {"x": np.zeros((1, 100_000), np.float32)}) for _ in range(2)]
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_to_its_death(script: str, folder: Path) -> int:
    """Run a script with a folder as its argument; return its process id."""
    process = subprocess.Popen([sys.executable, "-c", script, str(folder)], cwd=HERE)
    assert process.wait() < 0
    return process.pid


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_dead_boxs_files_are_removed_and_a_living_ones_kept(tmp_path: Path) -> None:
    run_to_its_death(LOCK_AND_DIE, tmp_path)
    living_lock = acquire_instance_lock("living", tmp_path)
    # The id of another box may begin like that of the dead one.
    others = ["another-program", "trireme-dead2-1-x-0"]
    for name in ("trireme-dead-1-a-0", "trireme-dead-pyxyz", "trireme-living-1-a-0", *others):
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert file_names(tmp_path) == [*others, "trireme-living-1-a-0", "trireme-living.lock"]
    living_lock.release()
    assert file_names(tmp_path) == others


def test_a_sweep_finds_no_lock_file_that_is_not_locked_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one of two boxes that start at the same time loses its lock."""
    flock = fcntl.flock

    def sweep_and_flock(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            sweep(tmp_path)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_and_flock)
    lock = acquire_instance_lock("a", tmp_path)
    sweep(tmp_path)
    assert file_names(tmp_path) == ["trireme-a.lock"]
    lock.release()
    assert file_names(tmp_path) == []


def test_a_killed_workers_files_and_regions_are_removed(triton: TritonProcess, tmp_path: Path) -> None:
    box = triton.box
    (tmp_path / "box.json").write_text(json.dumps(asdict(box), default=str))
    worker = run_to_its_death(CALL_AND_DIE, tmp_path)
    other_transport = Transport(triton.settings, box)
    assert len(triton.shared_memory_files()) == 2
    other = f"trireme-{box.id}-{os.getpid()}-other"
    (SHARED_MEMORY / f"{other}-0").touch()
    remove_worker_files(box.id, worker, box.http_port)
    assert triton.shared_memory_files() == [f"{other}-0"]
    assert not [name for name in server.regions(box.http_port) if f"-{worker}-" in name]
    shared_memory_cleanup.remove_files(other)
    other_transport.close()
