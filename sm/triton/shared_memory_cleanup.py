"""Remove the shared-memory files that dead boxes and workers left behind.

The name of a box's file begins with ``trireme-<id>-``. The supervisor holds a lock on ``trireme-<id>.lock``
while it lives, and the kernel releases the lock however the supervisor dies. So a lock that can be taken
belongs to a dead box.
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
from sm.triton import server

#: Permissions of the group and of other users.
OTHERS_RIGHTS = stat.S_IRWXG | stat.S_IRWXO
#: Raised if another process holds the lock, or if another user owns the file.
LOCK_ERRORS = (BlockingIOError, PermissionError)


class InstanceLock:
    """The lock of a living box."""

    def __init__(self, box_id: str, folder: Path, descriptor: int) -> None:
        self._box_id, self._folder, self._descriptor = box_id, folder, descriptor

    def release(self) -> None:
        """Remove every file of the box, the lock last."""
        remove_files(f"trireme-{self._box_id}-", self._folder)
        _lock_file(self._box_id, self._folder).unlink(missing_ok=True)
        os.close(self._descriptor)


def acquire_instance_lock(box_id: str, folder: Path = SHARED_MEMORY, *, is_new: bool = False) -> InstanceLock:
    """Take the lock of this box. Raises ``BlockingIOError`` if another process holds it.

    Args:
        box_id: The box's id.
        folder: Holds the lock's file.
        is_new: Nobody else knows the id. Only a sweep can hold the lock, which found the file before it was
            locked: wait until the sweep has removed it.
    """
    path = _lock_file(box_id, folder)
    operation = fcntl.LOCK_EX if is_new else fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            os.close(descriptor)
            raise
        if _is_file(path, descriptor):
            return InstanceLock(box_id, folder, descriptor)
        # A sweep removed the file between the two calls above: try again with a new file.
        os.close(descriptor)


def sweep(folder: Path = SHARED_MEMORY) -> list[str]:
    """Remove the files of dead boxes; return their ids."""
    dead = []
    for path in sorted(folder.glob("trireme-*.lock")):
        box_id = path.name.removeprefix("trireme-").removesuffix(".lock")
        try:
            acquire_instance_lock(box_id, folder).release()
        except LOCK_ERRORS:
            continue
        dead.append(box_id)
    return dead


def remove_files(prefix: str, folder: Path = SHARED_MEMORY) -> int:
    """Remove files and folders whose names begin with ``prefix``; return how many there were.

    The python backend's files, which a killed Triton leaves behind, begin with ``trireme-<id>-py``.
    """
    paths = list(folder.glob(f"{prefix}*"))
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return len(paths)


def make_private(prefix: str, folder: Path = SHARED_MEMORY) -> None:
    """Let only this user read and write the files whose names begin with ``prefix``.

    The python backend's files hold callers' tensors, and all users may read them, whatever the umask.
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
    keys: Mapping[str, str] = server.NO_KEYS,
) -> None:
    """Remove the files of a worker that ended, and make Triton unmap them.

    Triton refuses to unmap a region that a request uses. It is unmapped when the next worker ends.
    """
    remove_files(f"trireme-{box_id}-{pid}-", folder)
    for region in server.regions(http_port, keys):
        if region.startswith(f"trireme-{box_id}-") and not (folder / region).exists():
            server.unregister(http_port, region, keys)


def _lock_file(box_id: str, folder: Path) -> Path:
    return folder / f"trireme-{box_id}.lock"


def _is_file(path: Path, descriptor: int) -> bool:
    """True if the descriptor is of the file that has this path now."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
