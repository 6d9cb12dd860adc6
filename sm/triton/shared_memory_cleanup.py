"""Remove the files that dead boxes and workers left behind, in shared memory and in the temporary folder.

The name of a box's file begins with ``trireme-<id>-``. The supervisor holds a lock on ``trireme-<id>.lock``
while it lives, and the kernel releases the lock however the supervisor dies. So a lock that can be taken
belongs to a dead box.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from sm.run_state import SHARED_MEMORY, temporary_folder
from sm.triton import server

#: Permissions of the group and of other users.
OTHERS_RIGHTS = stat.S_IRWXG | stat.S_IRWXO


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
    """Take the lock of a new box, whose file is in ``folder``."""
    # A sweep must not find the file before it is locked.
    staged = folder / f"trireme-{box_id}"
    descriptor = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    staged.replace(_lock_file(box_id, folder))
    return InstanceLock(box_id, folder, descriptor)


def try_lock(path: Path) -> int | None:
    """Lock a file or folder for as long as the descriptor is open; None if another process holds the lock."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def sweep(folder: Path = SHARED_MEMORY) -> None:
    """Remove the files of dead boxes."""
    for path in folder.glob("trireme-*.lock"):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # another sweep's, another user's
            if (descriptor := try_lock(path)) is not None:
                box_id = path.name.removeprefix("trireme-").removesuffix(".lock")
                InstanceLock(box_id, folder, descriptor).release()


def remove_dead_boxes() -> None:
    """Remove the shared memory and the run folders of boxes that were killed."""
    sweep(SHARED_MEMORY)
    for file in temporary_folder().glob("trireme-*/box.json"):
        # Read only the id: a box of another version may have written other members.
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            if _lock_file(json.loads(file.read_text())["id"], SHARED_MEMORY).exists():
                continue
            # Containers may share /tmp and not their shared memory.
            if (descriptor := try_lock(file.parent)) is not None:
                shutil.rmtree(file.parent, ignore_errors=True)
                os.close(descriptor)


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
