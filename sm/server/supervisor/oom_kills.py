"""Find out whether the kernel killed a process of the box because memory ran out."""

from __future__ import annotations

from collections.abc import Callable

#: The reason for a SIGKILL that no process of the box sent.
OOM_KILLED = (
    ", killed by the kernel because memory ran out (give the container more, as with --memory, or let it "
    "serve fewer models, or with fewer SAGEMAKER_MODEL_SERVER_WORKERS)"
)
MODEL_OOM_KILLED = f": a Python model process died{OOM_KILLED}"


class OomKills:
    """Compares the kernel's count of killed processes with the one that it read last."""

    def __init__(self, count: Callable[[], int], clock: Callable[[], float]) -> None:
        self._count, self._clock = count, clock
        self._last_count = count()
        self._since: float | None = None

    def oom_killed(self, min_age: float) -> bool:
        """True if the kernel killed a process ``min_age`` seconds ago or earlier; reports each kill once."""
        count, now = self._count(), self._clock()
        if count > self._last_count and self._since is None:
            self._since = now
        self._last_count = count
        if self._since is None or now - self._since < min_age:
            return False
        self._since = None
        return True
