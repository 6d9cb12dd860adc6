"""Remove shared-memory files of boxes and workers that ended without doing so.

Every file of a box begins with ``trireme-<id>-``. The supervisor holds a lock on ``trireme-<id>.lock`` for as
long as it lives, and the kernel releases it however the supervisor dies. A lock that can be taken belongs to
a dead box.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from sm.run_state import SHARED_MEMORY
from sm.triton import health

OTHERS_RIGHTS = stat.S_IRWXG | stat.S_IRWXO
#: Another process holds the lock, or another user owns the file.
LOCKED = (BlockingIOError, PermissionError)


class InstanceLock:
    """The lock of a living box."""

    def __init__(self, box_id: str, folder: Path, descriptor: int) -> None:
        self._box_id, self._folder, self._descriptor = box_id, folder, descriptor

    def release(self) -> None:
        """Remove every file of the box, the lock last."""
        remove_files(f"trireme-{self._box_id}-", self._folder)
        _lock_file(self._box_id, self._folder).unlink(missing_ok=True)
        os.close(self._descriptor)


def acquire_instance_lock(box_id: str, folder: Path = SHARED_MEMORY) -> InstanceLock:
    """Take the lock of this box. Raises ``BlockingIOError`` if another process holds it."""
    path = _lock_file(box_id, folder)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        if _is_file(path, descriptor):
            return InstanceLock(box_id, folder, descriptor)
        # A sweep removed the file after it was opened and before it was locked.
        os.close(descriptor)


def sweep(folder: Path = SHARED_MEMORY) -> list[str]:
    """Remove the files of dead boxes; return their ids."""
    dead = []
    for path in sorted(folder.glob("trireme-*.lock")):
        box_id = path.name.removeprefix("trireme-").removesuffix(".lock")
        try:
            acquire_instance_lock(box_id, folder).release()
        except LOCKED:
            continue
        dead.append(box_id)
    return dead


def remove_files(prefix: str, folder: Path = SHARED_MEMORY) -> int:
    """Remove files and folders whose names begin with ``prefix``; return how many there were.

    After a ``kill -9`` of Triton, those of its python backend begin with ``trireme-<id>-py``.
    """
    paths = list(folder.glob(f"{prefix}*"))
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return len(paths)


def make_private(prefix: str, folder: Path = SHARED_MEMORY) -> None:
    """Take other users' rights from the files whose names begin with ``prefix``.

    The python backend's files hold callers' tensors, and it makes them readable for all users, whatever the
    umask.
    """
    for path in folder.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # removed meanwhile
            if path.stat().st_mode & OTHERS_RIGHTS:
                path.chmod(0o600)


def remove_worker_files(
    box_id: str,
    pid: int,
    http_port: int,
    folder: Path = SHARED_MEMORY,
    keys: Mapping[str, str] = health.NO_KEYS,
) -> None:
    """Remove the files of a worker that ended, and have Triton unmap them.

    Triton keeps a region that a request uses; it is removed when the next worker ends.
    """
    remove_files(f"trireme-{box_id}-{pid}-", folder)
    for region in health.regions(http_port, keys):
        if region.startswith(f"trireme-{box_id}-") and not (folder / region).exists():
            health.unregister(http_port, region, keys)


def _lock_file(box_id: str, folder: Path) -> Path:
    return folder / f"trireme-{box_id}.lock"


def _is_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
