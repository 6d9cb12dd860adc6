"""Processes: start those that die with their parent, signal their groups, reap every child, receive signals.

A watchdog cleans up after a supervisor that was killed: the kernel kills the supervisor's children with it
(``PR_SET_PDEATHSIG``), but not their children. As PID 1 of a container it is not needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from sm.hardware import children
from sm.server.supervisor.landlock import landlock

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38


@dataclass(frozen=True)
class Command:
    """What to execute, with its whole environment and the open files that it inherits."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    files: tuple[int, ...] = field(default=())
    #: True if it runs code of models, which must not reach into the box's other processes.
    runs_models: bool = False


class Processes:
    """The children of this process, and their descendants."""

    def __init__(self) -> None:
        # Loaded now: the dynamic linker must not run between fork and exec.
        self._prctl, self._landlock = ctypes.CDLL(None, use_errno=True).prctl, landlock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def adopt_orphans(self) -> None:
        """Become the parent of every descendant whose own parent dies, as PID 1 is anyway."""
        self._prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def spawn(self, command: Command) -> tuple[int, int]:
        """Start a process in a group of its own. Returns its process id, and the end of a pipe with its
        output.
        """
        output, child_end = os.pipe()
        try:
            child = subprocess.Popen(
                command.arguments,
                env=command.environment,
                stdin=subprocess.DEVNULL,
                stdout=child_end,
                stderr=child_end,
                pass_fds=command.files,
                # A Ctrl-C in the terminal goes to the supervisor only, which stops the children in order.
                start_new_session=True,
                preexec_fn=self._kill_with_parent(os.getpid(), command.runs_models),
            )
        except OSError:
            os.close(output)
            raise
        finally:
            os.close(child_end)
        os.set_blocking(output, False)
        self._running[child.pid] = child
        return child.pid, output

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to one process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def kill(self, pid: int) -> None:
        """Kill a process's whole group at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def reap(self) -> Iterator[tuple[int, int]]:
        """Reap children and return their exit code, or minus the signal; orphans are reaped silently.

        The rest of a dead child's group is killed before the child is reaped: until then no other process can
        get its process id.
        """
        for pid in _ended_children():
            if pid in self._running:
                self.kill(pid)
            status = _reap(pid)
            child = self._running.pop(pid, None)
            if child is not None:
                child.returncode = status
                yield pid, status

    def kill_all(self) -> None:
        """Kill the group of every running child."""
        for pid in self._running:
            self.kill(pid)

    def reap_all(self, seconds: float, except_pid: int | None = None) -> bool:
        """Reap until no child but ``except_pid`` is left. Returns False if some are left after ``seconds``.

        Orphans are children of this process too, so this covers every descendant.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in self.reap():
                pass
            if children(os.getpid()) <= {except_pid}:
                return True
            time.sleep(0.01)
        return False

    def _kill_with_parent(self, parent: int, runs_models: bool) -> Callable[[], None]:
        """Return a function for the child: it dies with its parent, and can get no more rights."""
        prctl, enter_landlock = self._prctl, self._landlock

        def prepare() -> None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            # No program that a model or a client starts can get more rights than this one has.
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            if runs_models:
                enter_landlock()
            if os.getppid() != parent:  # it died before the call
                os._exit(1)

        return prepare


def _ended_children() -> Iterator[int]:
    """Yield children that have ended and are not reaped."""
    while True:
        try:
            status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if status is None:
            return
        yield status.si_pid


def _reap(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


#: Signals that stop the box.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Receives the box's signals. The socket ``receiver`` is readable when some have arrived."""

    def __init__(self) -> None:
        self.receiver, sender = socket.socketpair()
        self.receiver.setblocking(False)
        sender.setblocking(False)
        self._sender = sender
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        for number in (*STOPPING, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def read(self) -> list[int]:
        """Return the numbers of the signals since the last call."""
        with contextlib.suppress(BlockingIOError):
            return list(self.receiver.recv(4096))
        return []


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
