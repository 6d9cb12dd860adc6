"""The start of ``serve``, as far as it goes without models; tests/integration/box has the rest."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sm.errors import StartError
from sm.run_state import SHARED_MEMORY, Box
from sm.server.supervisor import start
from sm.server.supervisor.start import acquire_instance_lock, raise_file_limit
from sm.settings import HERE
from sm.triton import shared_memory_cleanup
from tests.support.boxes import free_port, wait_until

pytestmark = pytest.mark.core


def run_serve(*arguments: str, **environment: str) -> tuple[int, list[dict[str, str]]]:
    """Run ``serve`` to its end. Returns its exit code and log records."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": "/nonexistent",
        "SAGEMAKER_BIND_TO_PORT": str(free_port()),
        **environment,
    }
    command = [str(HERE / "serve"), *arguments]
    completed = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment
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
    (record,) = records
    assert (code, record["process"], record["level"]) == (1, "serve", "error")
    assert named in record["message"]


def test_a_port_with_tls_that_is_taken_is_named_by_its_variable() -> None:
    with socket.create_server(("", 0)) as taken:
        ports = {"SAGEMAKER_BIND_TO_PORT": str(free_port()), "TRIREME_TLS_PORT": str(taken.getsockname()[1])}
        code, (record,) = run_serve(TRIREME_TLS_CERTIFICATE="/c", TRIREME_TLS_KEY="/k", **ports)
    assert (code, "TRIREME_TLS_PORT" in record["message"]) == (1, True), record


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
    assert (code, "TRIREME_TRITON_SERVER" in records[-1]["message"]) == (1, True)
    assert list(short_path.iterdir()) == []
    # The lock of another test's box exists for a moment before it is locked, and after it is released.
    new = set(SHARED_MEMORY.glob("trireme-*.lock")) - locks_before
    wait_until(lambda: not [lock for lock in new if lock.exists() and is_unlocked(lock)])


def is_unlocked(lock: Path) -> bool:
    """Whether no process holds the lock. Boxes of other tests may hold theirs."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@pytest.fixture
def runs(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the run folders."""
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    return short_path


def sweep() -> None:
    """Start a box as far as it looks for dead ones."""
    lock = acquire_instance_lock(f"test-mine-{os.getpid()}")
    assert lock is not None
    lock.release()


def test_run_folders_of_dead_boxes_are_removed_and_those_of_living_ones_kept(runs: Path) -> None:
    """Containers may share /tmp, and each has a /dev/shm of its own: one does not see the other's lock there."""
    for name in ("dead", "living", "elsewhere"):
        (run := runs / f"trireme-{name}").mkdir()
        Box(f"test-{name}-{os.getpid()}", run, run, 1, 2, 3, "nginx", 0).save()
    elsewhere = shared_memory_cleanup.try_lock(runs / "trireme-elsewhere")
    assert elsewhere is not None
    living = shared_memory_cleanup.acquire_instance_lock(f"test-living-{os.getpid()}")
    sweep()
    living.release()
    os.close(elsewhere)
    assert {path.name for path in runs.iterdir()} == {"trireme-living", "trireme-elsewhere"}


def test_a_run_folder_of_another_version_does_not_stop_the_start(runs: Path) -> None:
    texts = {"gone": '{"id": "gone", "of_another_version": 1}', "object": "{}", "list": "[]", "bytes": "\xff"}
    for name, text in texts.items():
        (runs / f"trireme-{name}").mkdir()
        (runs / f"trireme-{name}" / "box.json").write_text(text)
    sweep()
    assert {path.name for path in runs.iterdir()} == {"trireme-object", "trireme-list", "trireme-bytes"}


def test_the_file_limit_is_raised_to_the_hard_limit() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = start.MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, start.MAX_OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, highest - 1), hard))
    try:
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (highest, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_shared_memory_that_this_user_may_not_write_stops_the_start(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.chmod(0o555)
    monkeypatch.setattr(start, "SHARED_MEMORY", runs)
    user = os.geteuid()
    if not user:
        os.seteuid(65534)  # root may write everywhere
    try:
        with pytest.raises(StartError, match=str(runs)):
            acquire_instance_lock("test")
    finally:
        os.seteuid(user)
        runs.chmod(0o755)
