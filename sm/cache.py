"""The download and build cache: safe to interrupt, safe to share between processes.

Everything is written in ``scratch`` and renamed to its place when it is complete. A lock admits one process
at a time; the kernel releases it when the process dies. So the files that a process finds in ``scratch`` were
left by a dead one.
"""

from __future__ import annotations

import errno
import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sm.errors import StartError

#: A disk or a quota that is used up.
FULL = (errno.ENOSPC, errno.EDQUOT)


class Cache:
    """The layout of the cache's root."""

    def __init__(self, root: Path) -> None:
        try:
            self.root = root.expanduser().absolute()
        except RuntimeError:  # ~name of nobody
            raise StartError(f"the cache {root} is no folder: set TRIREME_CACHE to one.") from None
        #: Packages as the registries have them.
        self.downloads = self.root / "downloads"
        #: Built models: ``models/<name>/<key>/``.
        self.models = self.root / "models"
        #: Pictures that the demo needs and whose licence keeps them out of git.
        self.pictures = self.root / "pictures"
        #: Triton repositories, one per target.
        self.repositories = self.root / "repository"
        #: Triton's server, unpacked from its wheel where no environment has it.
        self.triton = self.root / "triton"
        self.scratch = self.root / "scratch"
        #: A street with people and a bus, shown to YOLOv5; its licence keeps it out of git.
        self.street_picture = self.pictures / "bus.jpg"

    @contextmanager
    def locked(self, say: Callable[[str], None]) -> Iterator[None]:
        """Hold the cache's lock, with an empty scratch folder. Wait for another process, and say so."""
        with self._sentences(), self._opened() as lock:
            self._lock(lock.fileno(), say)
            shutil.rmtree(self.scratch, ignore_errors=True)
            yield
            shutil.rmtree(self.scratch, ignore_errors=True)

    @contextmanager
    def workshop(self) -> Iterator[Path]:
        """Yield a temporary folder in scratch. It is removed afterwards, with everything that was not moved
        out of it.
        """
        self.scratch.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.scratch, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def place(self, source: Path, target: Path) -> None:
        """Move a finished file or folder to its place, replacing what is there."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            self.discard(target)
        source.replace(target)

    def discard(self, path: Path) -> None:
        """Remove a file or folder in one step: it is renamed away first, so no part of it is ever seen."""
        with self.workshop() as old:
            path.rename(old / path.name)

    def room_for(self, size: int, what: str) -> None:
        """Raise :class:`StartError` unless ``size`` bytes are free."""
        free = shutil.disk_usage(self.root).free
        if free < size:
            raise StartError(
                f"{what} needs about {size / 1e6:,.0f} MB in {self.root}, which has {free / 1e6:,.0f} MB "
                "free: make room, or set TRIREME_CACHE to a folder on another disk, and start again."
            )

    def _opened(self) -> IO[str]:
        """Make the root, and open the file of its lock. Whatever is wrong with the path shows here."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            return (self.root / "lock").open("w")
        except OSError as error:
            if error.errno in FULL:
                raise
            raise self._unusable(error) from None

    def _lock(self, descriptor: int, say: Callable[[str], None]) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is preparing {self.root}; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:  # a file system without locks
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> StartError:
        return StartError(
            f"the cache {self.root} cannot be written ({error.strerror}): set TRIREME_CACHE to a "
            "folder that can."
        )

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise StartError(
                    f"the disk of {self.root} is full: make room, or set TRIREME_CACHE to a folder on "
                    "another disk, and start again."
                ) from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
                raise self._unusable(error) from error
            raise
