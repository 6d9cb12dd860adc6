"""The download and build cache: safe to interrupt, safe to share between processes.

Everything is made in ``scratch`` and renamed to its place when it is whole. One process at a time
works in the cache, under a lock that the kernel drops when the process dies: so whatever lies in
``scratch`` when the lock is got belongs to a dead run.
"""

from __future__ import annotations

import errno
import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sm.errors import StartError


class Cache:
    """The layout of the cache's root."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        #: Packages as the registries have them.
        self.downloads = self.root / "downloads"
        #: Built models: ``models/<name>/<key>/``.
        self.models = self.root / "models"
        #: Pictures that the demo needs and git may not hold.
        self.pictures = self.root / "pictures"
        #: Triton repositories, one per target.
        self.repositories = self.root / "repository"
        self.scratch = self.root / "scratch"
        #: A street with people and a bus, which the demo shows to YOLOv5; its licence keeps it out of git.
        self.street_picture = self.pictures / "bus.jpg"

    @contextmanager
    def locked(self, say: Callable[[str], None]) -> Iterator[None]:
        """Work alone in the cache, in a clean scratch folder. Waits for another process, and says so."""
        with self._sentences():
            self.root.mkdir(parents=True, exist_ok=True)
            with (self.root / "lock").open("w") as lock:
                self._lock(lock.fileno(), say)
                shutil.rmtree(self.scratch, ignore_errors=True)
                yield
                shutil.rmtree(self.scratch, ignore_errors=True)

    @contextmanager
    def workshop(self) -> Iterator[Path]:
        """A folder of one's own in scratch, gone afterwards with what was not moved out of it."""
        self.scratch.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.scratch, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def place(self, made: Path, target: Path) -> None:
        """Put a finished file or folder in its place, instead of what is there."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            self.discard(target)
        made.replace(target)

    def discard(self, path: Path) -> None:
        """Remove a file or folder, so that no part of it is ever seen in its place."""
        with self.workshop() as old:
            path.rename(old / path.name)

    def room_for(self, size: int, what: str) -> None:
        """:class:`StartError` unless ``size`` bytes are free."""
        free = shutil.disk_usage(self.root).free
        if free < size:
            raise StartError(
                f"{what} needs about {size / 1e6:,.0f} MB in {self.root}, which has {free / 1e6:,.0f} MB "
                "free: make room, or set TRIREME_CACHE to a folder on another disk, and start again."
            )

    def _lock(self, descriptor: int, say: Callable[[str], None]) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is preparing {self.root}; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StartError(
                    f"the disk of {self.root} is full: make room, or set TRIREME_CACHE to a folder on "
                    "another disk, and start again."
                ) from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
                raise StartError(
                    f"the cache {self.root} cannot be written ({error.strerror}): set TRIREME_CACHE to a "
                    "folder that can."
                ) from error
            raise
