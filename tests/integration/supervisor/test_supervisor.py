"""The start of ``serve``, as far as it goes without models; tests/integration/box has the rest."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sm.errors import StartError
from sm.run_state import SHARED_MEMORY, Box
from sm.server.supervisor import start
from sm.server.supervisor.start import acquire_instance_lock
from sm.settings import HERE
from sm.triton import shared_memory_cleanup
from tests.support.boxes import free_port, wait_until

pytestmark = pytest.mark.core

#: The user id of ``nobody``.
UNPRIVILEGED_USER = 65534


def run_serve(*arguments: str, **environment: str) -> tuple[int, list[dict[str, str]]]:
    """Run ``serve`` to its end. Returns its exit code and log records."""
    completed = subprocess.run(
        [str(HERE / "serve"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": "/nonexistent", **environment},
    )
    assert completed.stderr == ""
    return completed.returncode, [json.loads(line) for line in completed.stdout.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "environment", "named"),
    [
        (("--dmeo",), {}, "--dmeo"),
        (("serve",), {"TRIREME_THREADS": "many"}, "TRIREME_THREADS"),
        (("--reload",), {"SAGEMAKER_MULTI_MODEL": "true"}, "--reload"),
        ((), {"SAGEMAKER_MULTI_MODEL": "true", "TRIREME_NGINX": "off"}, "TRIREME_NGINX"),
        ((), {"TRIREME_MODEL_REPOSITORY": "/nonexistent"}, "/nonexistent"),
        (("serve", "/nonexistent"), {}, "/nonexistent"),
        (("--demo",), {"TRIREME_CACHE": "/nonexistent", "TRIREME_LOG_FORMAT": "json"}, "make serve"),
    ],
)
def test_a_failed_start_logs_one_record_and_exits_with_1(
    arguments: tuple[str, ...], environment: dict[str, str], named: str
) -> None:
    code, records = run_serve(*arguments, **environment)
    assert code == 1
    assert len(records) == 1
    assert named in records[0]["message"]
    assert (records[0]["process"], records[0]["level"]) == ("serve", "error")


def test_a_failed_start_leaves_no_files(tmp_path: Path, short_path: Path) -> None:
    model = tmp_path / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").touch()
    locks_before = set(SHARED_MEMORY.glob("trireme-*.lock"))
    code, records = run_serve(
        TMPDIR=str(short_path),
        TRIREME_MODEL_REPOSITORY=str(model.parent),
        TRIREME_TRITON_SERVER="/nonexistent",
        SAGEMAKER_BIND_TO_PORT=str(free_port()),
    )
    assert code == 1
    assert "TRIREME_TRITON_SERVER" in records[-1]["message"]
    assert list(short_path.iterdir()) == []
    # The lock file of another test's box exists for a moment before it is locked, and after it is released.
    wait_until(
        lambda: (
            not [
                path for path in set(SHARED_MEMORY.glob("trireme-*.lock")) - locks_before if is_unlocked(path)
            ]
        ),
        description="no lock of a dead box",
    )


def is_unlocked(lock: Path) -> bool:
    """Whether no process holds the lock. Boxes of other tests may hold theirs."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def test_run_folders_of_dead_boxes_are_removed_and_those_of_living_ones_kept(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    for name in ("dead", "living"):
        run = short_path / f"trireme-{name}"
        run.mkdir()
        Box(f"test-{name}-{os.getpid()}", run, run, 1, 2, 3, "nginx", 0).save()
    living_lock = shared_memory_cleanup.acquire_instance_lock(f"test-living-{os.getpid()}")
    own_lock = acquire_instance_lock(f"test-mine-{os.getpid()}")
    try:
        assert [path.name for path in short_path.iterdir()] == ["trireme-living"]
    finally:
        for lock in (living_lock, own_lock):
            assert lock is not None
            lock.release()


def test_the_run_folder_of_a_box_with_other_shared_memory_is_kept(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers may share /tmp, and each has a /dev/shm of its own, so one does not see the other's lock."""
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    run = short_path / "trireme-living"
    run.mkdir()
    Box("elsewhere", run, run, 1, 2, 3, "nginx", 0).save()
    folder_lock = shared_memory_cleanup.try_lock(run)
    assert folder_lock is not None
    own_lock = acquire_instance_lock(f"test-mine-{os.getpid()}")
    assert own_lock is not None
    own_lock.release()
    assert run.exists()
    os.close(folder_lock)


@pytest.mark.parametrize(
    ("text", "kept"),
    [('{"id": "gone", "of_another_version": 1}', False), ("{}", True), ("[]", True), ("\xff", True)],
)
def test_a_run_folder_of_another_version_does_not_stop_the_start(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kept: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    other_folder = short_path / "trireme-other"
    other_folder.mkdir()
    (other_folder / "box.json").write_text(text)
    own_lock = acquire_instance_lock(f"test-mine-{os.getpid()}")
    assert own_lock is not None
    own_lock.release()
    assert other_folder.exists() is kept


def test_shared_memory_that_this_user_may_not_write_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        monkeypatch.setattr(start, "SHARED_MEMORY", Path(folder))
        effective_user = os.geteuid()
        if not effective_user:
            os.seteuid(UNPRIVILEGED_USER)  # Root may write everywhere.
        try:
            with pytest.raises(StartError, match=rf"\({os.getuid()}\)"):
                acquire_instance_lock("test")
        finally:
            os.seteuid(effective_user)
