"""The processes of Triton's Python models, "stubs", as the kernel sees them: alive, stopped or dead."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

#: Polls between two searches for new stubs: Triton has some 170 threads, each with a list of children.
POLLS_PER_SEARCH = 10


class StubCondition(Enum):
    """The worst that one of the stubs is in."""

    HEALTHY = "healthy"
    #: It has ended, and Triton has not asked how.
    DEAD = "dead"
    #: It is stopped by a signal or a debugger. It may go on, and then answers late.
    STOPPED = "stopped"


#: By the kernel's letter for a process's state, see proc(5).
CONDITIONS = {b"Z": StubCondition.DEAD, b"T": StubCondition.STOPPED, b"t": StubCondition.STOPPED}


class StubMonitor:
    """The children of the Triton process ``pid``. All of them are stubs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._stubs: tuple[bytes, ...] = ()
        self._polls = 0

    @property
    def has_stubs(self) -> bool:
        """Whether Triton had any at the last search."""
        return bool(self._stubs)

    @property
    def has_just_searched(self) -> bool:
        """Whether the last poll searched for new stubs."""
        return self._polls % POLLS_PER_SEARCH == 1

    def poll(self) -> StubCondition:
        """The stubs' condition now."""
        if self._polls % POLLS_PER_SEARCH == 0:
            self._stubs = tuple(self._search())
        self._polls += 1
        found = {self._condition(stub) for stub in self._stubs}
        for worst in (StubCondition.STOPPED, StubCondition.DEAD):
            if worst in found:
                return worst
        return StubCondition.HEALTHY

    def _search(self) -> Iterator[bytes]:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{self.pid}/task").iterdir():
                with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                    yield from _read(f"{task}/children").split()

    def _condition(self, stub: bytes) -> StubCondition:
        try:
            # "7 (a name) Z 1 ...": the name may hold anything, brackets too. 1 is its parent.
            state, parent = _read(f"/proc/{stub.decode()}/stat").rpartition(b")")[2].split()[:2]
        except OSError:
            return StubCondition.HEALTHY
        if int(parent) != self.pid:
            return StubCondition.HEALTHY
        return CONDITIONS.get(state, StubCondition.HEALTHY)


def _read(path: str) -> bytes:
    """A small file of /proc. There may be hundreds: a file object for each would be nine system calls
    and four times the time."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 1 << 16)
    finally:
        os.close(file)
