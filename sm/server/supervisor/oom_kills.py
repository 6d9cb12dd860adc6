"""Find out whether the kernel killed a process of the box because memory ran out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

#: The container's own control group counts them: in its second form, and in its first.
COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))

#: Why a process was killed that nobody of ours has killed.
OOM_KILLED = (
    ", killed by the kernel because memory ran out (give the container more, as with --memory, or let it "
    "serve fewer models, or with fewer SAGEMAKER_MODEL_SERVER_WORKERS)"
)
MODEL_OOM_KILLED = f": the process of a python model has died{OOM_KILLED}"


class OomKills:
    """The kernel's count as it was last seen."""

    def __init__(self, count: Callable[[], int], clock: Callable[[], float]) -> None:
        self._count, self._clock = count, clock
        self._seen = count()
        self._since: float | None = None

    def oom_killed(self, patience: float) -> bool:
        """Whether one was killed at least ``patience`` seconds ago; told once."""
        count, now = self._count(), self._clock()
        if count > self._seen and self._since is None:
            self._since = now
        self._seen = count
        if self._since is None or now - self._since < patience:
            return False
        self._since = None
        return True


def count_kills(counters: tuple[Path, ...] = COUNTERS) -> int:
    """Processes of this control group that were killed so far; 0 where nobody counts them."""
    for path in counters:
        with contextlib.suppress(OSError):
            for line in path.read_text().splitlines():
                name, _, number = line.partition(" ")
                if name == "oom_kill":
                    return int(number)
    return 0
