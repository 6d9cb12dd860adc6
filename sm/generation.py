"""Numbers in shared memory that say which Triton process may still be trusted.

Triton's python backend gives up on a model's process that shows no sign of life for about a second, sends it
the next request all the same, and takes its late reply for the answer to that one. So nobody delivers an
answer of a Triton whose model process has stalled: each start of Triton has a number, its *generation*, and
whoever sees a stall puts the generation in doubt, for every worker at once.

The supervisor also leaves a *heartbeat* here. When the whole machine stood still (a paused container, a
suspended laptop) workers go on at the same moment as Triton; they wait for the next heartbeat before they
deliver, and by then the supervisor has put the generation in doubt.

Only the standard library is imported: the supervisor uses this too.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

#: Bytes. A page is the least that can be mapped.
FILE_SIZE = mmap.PAGESIZE
#: Generations that are told apart; a number is used again after so many restarts.
DOUBT_FLAGS = 1024
#: Bytes before the flags.
HEADER_SIZE = 64
#: Places of the 8-byte numbers before the flags: each is written in one piece.
GENERATION, BOOT_TIME, REAL_TIME, WATCHED = range(4)
#: Triton gives up after 1 s without a sign of life, and healthy model processes give one every 0.3 s. So a
#: machine that stood still for longer than this may have made Triton give up.
STANDSTILL_S = 0.7
#: A heartbeat older than this may be the last one before a standstill. Below STANDSTILL_S, so that no answer
#: is delivered after a standstill before the supervisor has noticed it.
MAX_HEARTBEAT_AGE_S = 0.5


class SharedGeneration:
    """The numbers of one box, mapped from a file that all its processes open."""

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
        """Make the file, with its room reserved: a full disk later would be a SIGBUS. Raises ``OSError``."""
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
        """Triton is about to be started. For the supervisor alone."""
        following = self.current + 1
        self._flags[following % DOUBT_FLAGS] = 0
        self._integers[WATCHED] = 1
        self._integers[GENERATION] = following

    def put_in_doubt(self, generation: int) -> None:
        """No answer of that Triton may be delivered any more, by any worker."""
        self._flags[generation % DOUBT_FLAGS] = 1

    def is_in_doubt(self, generation: int) -> bool:
        """Whether a stall was seen since that start of Triton."""
        return bool(self._flags[generation % DOUBT_FLAGS])

    @property
    def is_watched(self) -> bool:
        """Whether answers have to wait for a heartbeat: Triton runs models in processes that can stall."""
        return bool(self._integers[WATCHED])

    def watch(self, needed: bool) -> None:
        """Say whether Triton has such processes. For the supervisor alone."""
        self._integers[WATCHED] = int(needed)

    def beat(self) -> None:
        """Leave a heartbeat. For the supervisor alone."""
        self._seconds[BOOT_TIME], self._seconds[REAL_TIME] = _clocks()

    def heartbeat_age(self) -> float:
        """Seconds since the last heartbeat.

        By two clocks: one goes on while the machine is suspended, the other is what Triton waits by, and it
        may be set forward.
        """
        boot_time, real_time = _clocks()
        return max(boot_time - self._seconds[BOOT_TIME], real_time - self._seconds[REAL_TIME])


def _clocks() -> tuple[float, float]:
    return time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
