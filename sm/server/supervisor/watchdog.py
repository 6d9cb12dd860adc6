"""Cleans up after a supervisor that was killed: a small process that waits for it to be gone.

The kernel kills the supervisor's children with it (``PR_SET_PDEATHSIG``), but not theirs: nginx's workers,
for one, would live on and keep the public port. As PID 1 of a container none of this is needed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import TextIO


class Watchdog:
    """The supervisor's end of a pipe to the guard; the pipe closes when the supervisor is no more."""

    def __init__(self, pid: int, pipe: TextIO) -> None:
        self.pid, self._pipe = pid, pipe

    @classmethod
    def start(cls) -> Watchdog:
        """Call it before anything is opened or started: the guard keeps what is open."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            with os.fdopen(reading) as orders:
                _watch(orders)
            os._exit(0)
        os.close(reading)
        return cls(pid, os.fdopen(writing, "w", buffering=1))

    def group(self, pid: int) -> None:
        """A process group to kill."""
        self._tell("group", pid)

    def forget(self, pid: int) -> None:
        """A group that is no more."""
        self._tell("forget", pid)

    def path(self, path: Path) -> None:
        """A file or folder to remove; a name that ends in ``*`` stands for all that begin so."""
        self._tell("path", path)

    def dismiss(self) -> None:
        """The supervisor has cleaned up itself."""
        self._tell("done", "")
        with contextlib.suppress(OSError):
            self._pipe.close()

    def _tell(self, word: str, what: object) -> None:
        # Without its guard the box works as well.
        with contextlib.suppress(OSError, ValueError):
            self._pipe.write(f"{word} {what}\n")


def _watch(orders: TextIO) -> None:
    groups: set[int] = set()
    paths: list[Path] = []
    for order in orders:
        word, _, what = order.rstrip("\n").partition(" ")
        if word == "done":
            return
        if word == "group":
            groups.add(int(what))
        elif word == "forget":
            groups.discard(int(what))
        else:
            paths.append(Path(what))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for path in paths:
        remove(path)


def remove(path: Path) -> None:
    """A file, a folder, or all files that begin like ``path`` where it ends in ``*``; nothing is fine too."""
    for found in path.parent.glob(path.name) if path.name.endswith("*") else [path]:
        if found.is_dir():
            shutil.rmtree(found, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                found.unlink()
