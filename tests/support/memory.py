"""Measure the memory of a box's workers, or of this process, from ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.support.boxes import RunningBox, descendants, memory_field


class PeakMemory:
    """Measures how much any worker's memory has grown at its peak since this object was created."""

    def __init__(self, box: RunningBox) -> None:
        self._before = {pid: _begin(pid) for pid in box.pids("sm.server.worker")}

    @property
    def bytes(self) -> int:
        return max(memory_field(pid, "VmHWM:", "status") - before for pid, before in self._before.items())


def peak_of_process(work: Callable[[], object]) -> int:
    """Return how much this process's memory has grown at its peak during ``work``, in bytes."""
    before = _begin(os.getpid())
    work()
    return memory_field(os.getpid(), "VmHWM:", "status") - before


def _begin(pid: int) -> int:
    """Set the peak of a process to its present memory, and return that."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory_field(pid, "VmRSS:", "status")


def proportional_bytes(box: RunningBox) -> int:
    """Memory of all processes of the box in bytes; pages that they share are counted once."""
    return sum(memory_field(pid, "Pss:") for pid in (box.process.pid, *descendants(box.process.pid)))
