"""The processes of a contestant: their processor time and memory, and their end.

    python -m bench.tree COMMAND [WORD ...]

runs a command that adopts orphaned processes, as PID 1 of a container does. So all that a contestant starts
stays below it, and can be counted and ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
#: prctl's PR_SET_ and PR_GET_CHILD_SUBREAPER: what a dead parent leaves becomes its child, as PID 1's in a
#: container.
SUBREAPER, IS_SUBREAPER = 36, 37


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans. The setting survives an exec."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Adopt orphans in this block only: a process that does not wait for them would keep zombies."""
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(IS_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    adopt_orphans()
    try:
        yield
    finally:
        prctl(SUBREAPER, before.value, 0, 0, 0)


@dataclass(frozen=True)
class Use:
    """``seconds`` of processor time, ``memory`` in bytes; ``own_memory`` is without Triton's."""

    seconds: float
    memory: int
    own_memory: int


def processor_seconds(root: int) -> float:
    """Return the processor time of ``root`` and its descendants, dead ones included that were waited for."""
    return sum(map(seconds_of, pids(root)))


def memory(roots: Iterable[int], kinds: Sequence[str] = ("Pss",)) -> tuple[int, int]:
    """Return the bytes of these and their descendants, with and without Triton; of shared pages the share.

    ``kinds``: the lines of smaps_rollup that are added up.
    """
    everyone = set().union(*map(pids, roots))
    triton = set().union(*(pids(pid) for pid in everyone if _name(pid) == "tritonserver"))
    sizes = {pid: _memory(pid, kinds) for pid in everyone}
    return sum(sizes.values()), sum(size for pid, size in sizes.items() if pid not in triton)


def descendants(pid: int) -> Iterator[int]:
    """Yield every descendant of ``pid``, from the kernel's list of children."""
    for task in PROC.glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                yield child
                yield from descendants(child)


def pids(root: int) -> set[int]:
    return {root, *descendants(root)}


def seconds_of(pid: int) -> float:
    """User and system time of a process and of its children that it has waited for."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


def _memory(pid: int, kinds: Sequence[str]) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.partition(":")[0] in kinds)


def _name(pid: int) -> str:
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    adopt_orphans()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell is wanted
