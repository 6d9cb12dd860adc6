"""The set-up's part of the cache, downloads and builds: safe to interrupt, safe to share between processes.

Everything is written in ``scratch`` and renamed to its place when it is complete. A lock admits one process
at a time, and the kernel releases it when the process dies. So the files that a process finds in ``scratch``
are those of a dead process.
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

#: The kernel's errors for a full disk or quota.
DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
#: Errors of a folder that cannot be written, or whose file system has no locks.
UNUSABLE_ERRORS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST),
    *(errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS),
)


class Cache:
    """The layout of the cache's root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        #: Packages as downloaded from the registries.
        self.downloads = self.root / "downloads"
        #: Built models: ``models/<name>/<key>/``.
        self.models = self.root / "models"
        #: Pictures that the demo needs and whose licence keeps them out of git.
        self.pictures = self.root / "pictures"
        #: Triton repositories, one per target.
        self.repositories = self.root / "repository"
        #: Triton's server, unpacked from its wheel if no environment has it.
        self.triton = self.root / "triton"
        self.scratch = self.root / "scratch"
        #: A street with people and a bus, shown to YOLOv5; its licence keeps it out of git.
        self.street_picture = self.pictures / "bus.jpg"

    @contextmanager
    def locked(self, report: Callable[[str], None]) -> Iterator[None]:
        """Hold the cache's lock, with an empty scratch folder. Reports that it waits for another process."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = (self.root / "lock").open("w")
        except OSError as error:
            raise self._explain(error) from error
        with self._translate_errors(), lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report(f"another process is preparing {self.root}; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            shutil.rmtree(self.scratch, ignore_errors=True)
            yield
            shutil.rmtree(self.scratch, ignore_errors=True)

    @contextmanager
    def scratch_folder(self) -> Iterator[Path]:
        """Yield a temporary folder in scratch. At the end it is removed with all that is still in it."""
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
        """Remove a file or folder in one step: it is moved to scratch first, so nobody sees a part of it."""
        with self.scratch_folder() as discarded:
            path.rename(discarded / path.name)

    def check_free_space(self, size: int, purpose: str) -> None:
        """Raise :class:`StartError` unless ``size`` bytes are free."""
        free = shutil.disk_usage(self.root).free
        if free < size:
            raise StartError(
                f"{purpose} needs about {size / 1e6:,.0f} MB in {self.root}, which has {free / 1e6:,.0f} MB "
                "free: make room, or set TRIREME_CACHE to a folder on another disk, and start again."
            )

    def _explain(self, error: OSError) -> StartError:
        if error.errno in DISK_FULL_ERRORS:
            return StartError(
                f"the disk of {self.root} is full: make room, or set TRIREME_CACHE to a folder on another "
                "disk, and start again."
            )
        return StartError(
            f"the cache {self.root} cannot be written ({error.strerror}): set TRIREME_CACHE to a folder that "
            "can."
        )

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (*DISK_FULL_ERRORS, *UNUSABLE_ERRORS):
                raise self._explain(error) from error
            raise
