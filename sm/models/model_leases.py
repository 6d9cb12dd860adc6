"""Lease a model to the requests that use it, so that nobody unloads it.

A lease is a shared lock on a file; who unloads takes the lock alone. The kernel releases the locks of a
worker that dies. The time of the file is when the model was used last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class ModelLeases:
    """The leases of this process, by the id of a model's record."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        #: The locked file and the number of requests that use the model.
        self._held: dict[str, tuple[int, int]] = {}

    def take(self, identity: str) -> bool:
        """Lease a model once more. Returns False if it is being unloaded."""
        with self._lock:
            file, count = self._held.get(identity, (-1, 0))
            if not count:
                file = os.open(self._folder / identity, FLAGS, 0o600)
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(file)
                    return False
            os.utime(file)
            self._held[identity] = (file, count + 1)
            return True

    def release(self, identity: str) -> None:
        """Give back one lease."""
        with self._lock:
            file, count = self._held.pop(identity)
            if count > 1:
                self._held[identity] = (file, count - 1)
            else:
                os.close(file)


@contextlib.contextmanager
def alone(folder: Path, identity: str) -> Iterator[bool]:
    """Keep others from leasing a model. Yields False if a request uses it."""
    file = os.open(folder / identity, FLAGS, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(file)


def touch(folder: Path, identity: str) -> None:
    """Count a model as used now."""
    (folder / identity).touch()


def last_used(folder: Path, identity: str) -> float:
    """Return when a model was used last, as time of day; 0 if never."""
    try:
        return (folder / identity).stat().st_mtime
    except FileNotFoundError:
        return 0.0
