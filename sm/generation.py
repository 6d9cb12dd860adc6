"""Numbers in shared memory that say whether the running Triton can be trusted.

Triton's python backend gives up on a model's process that shows no sign of life for about a second. Yet it
sends that process the next request, and takes its late reply for the answer to that one. So no worker
delivers an answer of a Triton whose model process has stalled: each start of Triton has a number, its
*generation*, and a process that sees a stall puts the generation in doubt for all workers at once.

The supervisor also leaves a *heartbeat* here. After a standstill of the whole machine (a paused container, a
suspended laptop) workers continue at the same moment as Triton. They wait for the next heartbeat before they
deliver an answer, and by then the supervisor has put the generation in doubt.

Only the standard library is imported: the supervisor uses this too.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

#: Bytes of the file. Memory is mapped in whole pages.
FILE_SIZE = mmap.PAGESIZE
#: Generations that have a flag; after so many restarts of Triton a number is used again.
DOUBT_FLAGS = 1024
#: Bytes before the flags.
HEADER_SIZE = 64
#: Indexes of the 8-byte numbers before the flags. A number of 8 bytes is written atomically.
GENERATION, BOOT_TIME, REAL_TIME, WATCHED = range(4)
#: Seconds. Triton gives up on a model process after 1 s without a sign of life, and a healthy one sends a
#: sign every 0.3 s. So a machine that stood still for longer than this may have made Triton give up.
STANDSTILL_S = 0.7
#: Seconds. An older heartbeat may be the last one before a standstill. Less than STANDSTILL_S, so that no
#: answer is delivered after a standstill before the supervisor notices it.
MAX_HEARTBEAT_AGE_S = 0.5


class SharedGeneration:
    """The shared numbers of one box, mapped from a file that all its processes open."""

    def __init__(self, path: Path) -> None:
        """Map the file at ``path``. Raises ``OSError`` if it is not there."""
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._memory = mmap.mmap(descriptor, FILE_SIZE)
        finally:
            os.close(descriptor)
        view = memoryview(self._memory)
        self._integers, self._seconds = view[:HEADER_SIZE].cast("Q"), view[:HEADER_SIZE].cast("d")
        self._flags = view[HEADER_SIZE : HEADER_SIZE + DOUBT_FLAGS]

    @classmethod
    def create(cls, path: Path) -> SharedGeneration:
        """Create the file and reserve its space. Raises ``OSError``.

        Without the space, a later write to a full disk would kill the process (SIGBUS).
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, FILE_SIZE)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        return cls(path)

    @property
    def current(self) -> int:
        """The number of Triton's last start; 0 before the first."""
        return self._integers[GENERATION]

    def advance(self) -> None:
        """Start a new generation, before Triton is started. Only the supervisor calls it."""
        next_generation = self.current + 1
        self._flags[next_generation % DOUBT_FLAGS] = 0
        self._integers[WATCHED] = 1
        self._integers[GENERATION] = next_generation

    def put_in_doubt(self, generation: int) -> None:
        """Make all workers reject the answers of a generation."""
        self._flags[generation % DOUBT_FLAGS] = 1

    def is_in_doubt(self, generation: int) -> bool:
        """True if a stall was seen in this generation."""
        return bool(self._flags[generation % DOUBT_FLAGS])

    @property
    def is_watched(self) -> bool:
        """True if answers must wait for a heartbeat: Triton runs models in processes that can stall."""
        return bool(self._integers[WATCHED])

    def watch(self, needed: bool) -> None:
        """Set whether Triton runs models in processes of their own. Only the supervisor calls it."""
        self._integers[WATCHED] = int(needed)

    def beat(self) -> None:
        """Write a heartbeat. Only the supervisor calls it."""
        self._seconds[BOOT_TIME], self._seconds[REAL_TIME] = _clocks()

    def heartbeat_age(self) -> float:
        """Return the seconds since the last heartbeat, the larger of two clocks' values.

        One clock also counts while the machine is suspended. The other is the one that Triton waits by; it
        may be set forward.
        """
        boot_time, real_time = _clocks()
        return max(boot_time - self._seconds[BOOT_TIME], real_time - self._seconds[REAL_TIME])


def _clocks() -> tuple[float, float]:
    return time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
