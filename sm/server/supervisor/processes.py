"""Start processes that die with their parent, signal their groups, and reap every child."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Command:
    """What to execute, with which environment (all of it) and which open files besides the three."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    files: tuple[int, ...] = field(default=())


class Processes:
    """The children of this process, and theirs."""

    def __init__(self) -> None:
        # Looked up now: between fork and exec there is no time for the dynamic linker.
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def adopt_orphans(self) -> None:
        """Become the parent of every descendant whose own parent dies, as PID 1 is anyway."""
        self._prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def spawn(self, command: Command) -> tuple[int, int]:
        """Start it in a group of its own. Its process id, and the end of a pipe with all it prints."""
        output, its_end = os.pipe()
        try:
            child = subprocess.Popen(
                command.arguments,
                env=command.environment,
                stdin=subprocess.DEVNULL,
                stdout=its_end,
                stderr=its_end,
                pass_fds=command.files,
                # A Ctrl-C in the terminal is for the supervisor, who asks the children in order.
                start_new_session=True,
                preexec_fn=self._die_with(os.getpid()),
            )
        except OSError:
            os.close(output)
            raise
        finally:
            os.close(its_end)
        os.set_blocking(output, False)
        self._running[child.pid] = child
        return child.pid, output

    def signal(self, pid: int, number: int) -> None:
        """To one process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def kill(self, pid: int) -> None:
        """Its whole group, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def reap(self) -> Iterator[tuple[int, int]]:
        """Children of ours that are over, with exit code or minus the signal; orphans are just buried.

        The rest of a dead child's group is killed before the child is waited for: until then its number
        cannot be another process's.
        """
        for pid in _over():
            if pid in self._running:
                self.kill(pid)
            status = _reap(pid)
            child = self._running.pop(pid, None)
            if child is not None:
                child.returncode = status
                yield pid, status

    def kill_all(self) -> None:
        """Every group that is still there, at once."""
        for pid in self._running:
            self.kill(pid)

    def empty(self, seconds: float, but: int | None = None) -> bool:
        """Bury until no child is left, ``but`` one; False if some still are after ``seconds``.

        Orphans are children of ours too, so this is about every descendant.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in self.reap():
                pass
            if children() <= {but}:
                return True
            time.sleep(0.01)
        return False

    def _die_with(self, parent: int) -> Callable[[], None]:
        prctl = self._prctl

        def prepare() -> None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it died before the call
                os._exit(1)

        return prepare


def children() -> set[int]:
    """The children of this process; none where the kernel does not tell (it was built without)."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return set()
    return set(map(int, text.split()))


def _over() -> Iterator[int]:
    """Children that have ended, each until it is buried."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None:
            return
        yield found.si_pid


def _reap(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)
