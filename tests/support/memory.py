"""Measure the memory of a box's workers, or of this process, from ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.support.boxes import RunningBox, descendants, memory_field


class PeakMemory:
    """Measures how much any worker's memory has grown at its peak since this object was created."""

    def __init__(self, box: RunningBox) -> None:
        self._before = {pid: _status_field(pid, "VmRSS:") for pid in box.pids("sm.server.worker data")}
        for pid in self._before:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # sets VmHWM to VmRSS

    @property
    def bytes(self) -> int:
        return max(_status_field(pid, "VmHWM:") - before for pid, before in self._before.items())


def peak_of_process(work: Callable[[], object]) -> int:
    """Return how much this process's memory has grown at its peak during ``work``, in bytes."""
    pid = os.getpid()
    before = _status_field(pid, "VmRSS:")
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # sets VmHWM to VmRSS
    work()
    return _status_field(pid, "VmHWM:") - before


def _status_field(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def proportional_bytes(box: RunningBox) -> int:
    """Memory of all processes of the box in bytes; pages that they share are counted once."""
    return sum(memory_field(pid, "Pss:") for pid in (box.process.pid, *descendants(box.process.pid)))
