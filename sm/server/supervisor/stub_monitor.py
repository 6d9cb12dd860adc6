"""The processes of Triton's Python models ("stubs") as the kernel sees them: alive, stopped or dead."""

from __future__ import annotations

from enum import Enum

from sm import process_table

#: Polls between two searches for new stubs: Triton has some 170 threads, each with a list of children.
POLLS_PER_SEARCH = 10


class StubCondition(Enum):
    """The worst condition among the stubs."""

    HEALTHY = "healthy"
    #: It has ended, and Triton has not waited for it.
    DEAD = "dead"
    #: A signal or a debugger has stopped it. It may continue, and then answers late.
    STOPPED = "stopped"


#: By the kernel's letter for a process's state, see proc(5).
CONDITIONS = {b"Z": StubCondition.DEAD, b"T": StubCondition.STOPPED, b"t": StubCondition.STOPPED}


class StubMonitor:
    """The children of the Triton process ``pid``, all of which are stubs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._stubs: tuple[int, ...] = ()
        self._polls = 0

    @property
    def has_stubs(self) -> bool:
        """True if the last search found stubs."""
        return bool(self._stubs)

    @property
    def has_just_searched(self) -> bool:
        """True if the last poll searched for new stubs."""
        return self._polls % POLLS_PER_SEARCH == 1

    def poll(self) -> StubCondition:
        """Return the stubs' condition now."""
        if self._polls % POLLS_PER_SEARCH == 0:
            self._stubs = tuple(process_table.children(self.pid))
        self._polls += 1
        conditions = {self._condition(stub) for stub in self._stubs}
        for worst in (StubCondition.STOPPED, StubCondition.DEAD):
            if worst in conditions:
                return worst
        return StubCondition.HEALTHY

    def _condition(self, stub: int) -> StubCondition:
        fields = process_table.status_fields(stub)
        # The number may be another process's by now.
        if not fields or int(fields[1]) != self.pid:
            return StubCondition.HEALTHY
        return CONDITIONS.get(fields[0], StubCondition.HEALTHY)
