"""Cleans up after a supervisor that was killed: a small process that waits for its end.

The kernel kills the supervisor's children with it (``PR_SET_PDEATHSIG``), but not their children: nginx's
workers, for example, would keep the public port. As PID 1 of a container none of this is needed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import TextIO


class Watchdog:
    """The supervisor's end of a pipe to the watchdog process; the pipe closes when the supervisor dies."""

    def __init__(self, pid: int, pipe: TextIO) -> None:
        self.pid, self._pipe = pid, pipe

    @classmethod
    def start(cls) -> Watchdog:
        """Start the process before anything else is opened or started, as it inherits every open file."""
        receiver, sender = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(sender)
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            with os.fdopen(receiver) as lines:
                _watch(lines)
            os._exit(0)
        os.close(receiver)
        return cls(pid, os.fdopen(sender, "w", buffering=1))

    def add_group(self, pid: int) -> None:
        """Add a process group to kill."""
        self._send("group", pid)

    def remove_group(self, pid: int) -> None:
        """Remove a process group that has ended."""
        self._send("forget", pid)

    def add_path(self, path: Path) -> None:
        """Add a file or folder to remove; ``*`` at the end stands for any suffix."""
        self._send("path", path)

    def dismiss(self) -> None:
        """End the process: the supervisor has cleaned up itself."""
        self._send("done", "")
        with contextlib.suppress(OSError):
            self._pipe.close()

    def _send(self, command: str, argument: object) -> None:
        # The box works without its watchdog, too.
        with contextlib.suppress(OSError, ValueError):
            self._pipe.write(f"{command} {argument}\n")


def _watch(lines: TextIO) -> None:
    """Collect groups and paths until the pipe ends; then kill and remove them, unless dismissed."""
    groups: set[int] = set()
    paths: list[Path] = []
    for line in lines:
        command, _, argument = line.rstrip("\n").partition(" ")
        if command == "done":
            return
        if command == "group":
            groups.add(int(argument))
        elif command == "forget":
            groups.discard(int(argument))
        else:
            paths.append(Path(argument))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for path in paths:
        remove(path)


def remove(path: Path) -> None:
    """Remove a file, a folder, or all files that match a path with ``*`` at its end, if there are any."""
    for entry in path.parent.glob(path.name) if path.name.endswith("*") else [path]:
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                entry.unlink()
