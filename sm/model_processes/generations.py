"""Numbers in shared memory that say whether a model's answers can be trusted.

Triton's python backend gives up on a model's process that shows no sign of life for about a second. Yet it
sends that process the next request, and takes its late reply for the answer to that one. So each load of a
Python model has a number, its *generation*. A worker that learns that a process died or fell behind reports
it, which ends the generation for all processes of the box at once: what that load still answers is delivered
only if the answer itself says whose it is. The supervisor kills that process and publishes that the model is
*out*; so it does if it learns of it first. The control plane loads again what is out and admits its calls,
which belong to the next generation.

The supervisor also leaves a *heartbeat* here. After a standstill of the whole machine (a paused container, a
suspended laptop) workers continue at the same moment as Triton, which may have given up on a process. An
answer that does not say whose it is waits for the next heartbeat, and a moment longer if there was a
standstill: by then the worker that reads Triton's message has ended the generation.

Calls whose process is gone wait for the next one (:mod:`sm.triton.calls`). What they wait for is here too:
whether Triton serves, and which calls are sent alone because one of them may have crashed a process.

The supervisor uses this too, so nothing large is imported.
"""

from __future__ import annotations

import itertools
import mmap
import os
import time
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from sm.invocation import Ticket

#: Models have a slot each, by a hash of their name. Two that share one cost each other a reload's time.
SLOTS = 4096
#: Bytes before the slots.
HEADER_SIZE = 64
#: Bytes of each slot: four times, two numbers, and why calls are refused.
SLOT_SIZES = (8, 8, 8, 8, 4, 4, 1)
FILE_SIZE = -(HEADER_SIZE + SLOTS * sum(SLOT_SIZES)) // mmap.PAGESIZE * -mmap.PAGESIZE
#: The times at which models were taken out, for all slots, while no model is out: zeros.
NOTHING_OUT = bytes(SLOTS * 8)
#: Indexes of the 8-byte numbers before the slots. A number of 8 bytes is written atomically.
BOOT_TIME, REAL_TIME, WATCHED, RESUMED, TRITON, STARTS = range(6)
#: States of Triton: it serves, it is being started again, or it will not come back because the box stops.
SERVES, STARTS_AGAIN, STOPPED = range(3)
#: Why calls of a model are refused: it has no process that serves, its processes died too often, or a worker
#: has reported it and the supervisor has not decided yet.
NO_PROCESS, UNSTABLE, REPORTED = 1, 2, 3
#: Stands for a model in :meth:`SharedGeneration.reserve`, when calls of all models are sent alone.
TRITON_ITSELF = ""
#: Seconds. Triton gives up on a model process after 1 s without a sign of life, and a healthy one sends a
#: sign every 0.3 s. So a machine that stood still for longer than this may have made Triton give up.
STANDSTILL_S = 0.7
#: Seconds. An older heartbeat may be the last one before a standstill. Less than STANDSTILL_S, so that no
#: answer is delivered after a standstill before the supervisor notices it.
MAX_HEARTBEAT_AGE_S = 0.5
#: Seconds after a standstill in which the workers read Triton's messages about the processes it gave up on.
SETTLING_S = 0.5


class SharedGeneration:
    """The shared numbers of one box, mapped from a file that all its processes open."""

    def __init__(self, path: Path) -> None:
        """Map the file at ``path``. Raises ``OSError`` if it is not there."""
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._map(mmap.mmap(descriptor, FILE_SIZE))
        finally:
            os.close(descriptor)

    @classmethod
    def private(cls) -> SharedGeneration:
        """Return the numbers of a process without a box: nothing ends its generations."""
        numbers = cls.__new__(cls)
        numbers._map(mmap.mmap(-1, FILE_SIZE))
        return numbers

    def _map(self, memory: mmap.mmap) -> None:
        self._memory = memory
        view = memoryview(self._memory)
        self._integers, self._seconds = view[:HEADER_SIZE].cast("Q"), view[:HEADER_SIZE].cast("d")
        ends = [HEADER_SIZE + SLOTS * size for size in itertools.accumulate(SLOT_SIZES, initial=0)]
        self._out_since = view[ends[0] : ends[1]].cast("d")
        self._loaded_since = view[ends[1] : ends[2]].cast("d")
        self._answered = view[ends[2] : ends[3]].cast("d")
        self._reserved_until = view[ends[3] : ends[4]].cast("d")
        self._numbers = view[ends[4] : ends[5]].cast("I")
        self._crashed = view[ends[5] : ends[6]].cast("I")
        self._refused = view[ends[6] : ends[7]]

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

    # The models. Names are Triton's.

    def number(self, model: str) -> int:
        """The model's generation."""
        return self._numbers[slot(model)]

    def ticket(self, models: Iterable[str]) -> Ticket | None:
        """Return what a call of these models begins with; None if one of them may have to wait."""
        generations = []
        for model in models:
            at = slot(model)
            # The number first: a report refuses calls before it ends the generation.
            generations.append((model, self._numbers[at]))
            if self._refused[at] or self._reserved_until[at]:
                return None
        if self._reserved_until[slot(TRITON_ITSELF)]:
            return None
        return Ticket(tuple(generations), self._seconds[RESUMED])

    def ended(self, generations: Iterable[tuple[str, int]]) -> str | None:
        """Return the first model whose generation is another one now; None if there is none."""
        for model, number in generations:
            if self._numbers[slot(model)] != number:
                return model
        return None

    def refusal(self, model: str) -> int:
        """Return why calls of the model are refused, such as :data:`NO_PROCESS`; 0 if they are not."""
        return self._refused[slot(model)]

    def out_since(self, model: str) -> float:
        """Since when the model is out, on the boot clock; 0 if it serves."""
        return self._out_since[slot(model)]

    @property
    def serves_all(self) -> bool:
        """True if no model is out: one look at all of them, whatever their number."""
        return self._memory[HEADER_SIZE : HEADER_SIZE + SLOTS * 8] == NOTHING_OUT

    def loaded_since(self, model: str) -> float:
        """When the last reload of the model began, on the boot clock. Older processes do not serve it."""
        return self._loaded_since[slot(model)]

    def answered(self, model: str) -> float:
        """When the model last sent a part of a stream, as time of day; 0 for never."""
        return self._answered[slot(model)]

    def note_part(self, model: str) -> None:
        """Record that the model has sent a part of a stream."""
        self._answered[slot(model)] = time.time()

    def report(self, model: str, number: int) -> bool:
        """End a generation of a model whose processes are in doubt, and let calls wait for the supervisor.

        Returns False if it had ended already: other processes may serve by now. A worker calls it, and then
        tells the supervisor.
        """
        at = slot(model)
        if self._numbers[at] != number:
            return False
        self._refused[at] = self._refused[at] or REPORTED
        self._next(at)
        return True

    def decide(self, model: str, number: int, crashed: bool) -> None:
        """Publish that a model is out, of which a generation was reported. Only the supervisor calls it.

        Its calls wait until :meth:`refuse` says whether another process serves.

        Args:
            model: The model.
            number: The generation.
            crashed: True if a process had died by itself, perhaps of a call.
        """
        at = slot(model)
        if crashed:
            self._crashed[at] = number + 1 & 0xFFFFFFFF
        self._out_since[at] = self._out_since[at] or now()

    def take_out(self, model: str, born: float, crashed: bool = False) -> bool:
        """End the model's generation and publish that it is out. Only the supervisor calls it.

        Args:
            model: The model.
            born: When the process that died or was killed was started, on the boot clock.
            crashed: True if it died by itself, perhaps of a call.

        Returns:
            False if the process did not serve the model, or if the model is out already.
        """
        at = slot(model)
        if born <= max(self._loaded_since[at], self._out_since[at]):
            return False
        self._next(at, crashed)
        self._out_since[at] = now()
        return True

    def crashed(self, model: str, number: int) -> bool:
        """True if this generation of the model was the last one that ended with a crash."""
        return self._crashed[slot(model)] == number + 1 & 0xFFFFFFFF

    def refuse(self, model: str, reason: int = NO_PROCESS) -> None:
        """Refuse calls of a model. Only the supervisor calls it."""
        self._refused[slot(model)] = reason

    def reserve(self, model: str, seconds: float) -> None:
        """Keep new calls of a model waiting, while others are sent alone."""
        self._reserved_until[slot(model)] = now() + seconds

    def is_reserved(self, model: str) -> bool:
        """True if calls of the model are sent alone now."""
        until = self._reserved_until[slot(model)]
        return until > 0.0 and until > now()

    def admit(self, model: str, out_since: float) -> bool:
        """Admit calls of a model that was loaded again; False if it was taken out again meanwhile."""
        at = slot(model)
        if self._out_since[at] != out_since:
            return False
        # The calls that began meanwhile were for the processes before.
        self._next(at)
        self._loaded_since[at] = out_since
        self._out_since[at] = 0.0
        if self._refused[at] == NO_PROCESS:
            self._refused[at] = 0
        return True

    def admit_all(self) -> None:
        """Admit calls of all models: a new Triton loads them. Only the supervisor calls it."""
        self._memory[HEADER_SIZE : HEADER_SIZE + SLOTS * 16] = bytes(SLOTS * 16)
        self._refused[:] = bytes(SLOTS)
        self._integers[STARTS] += 1

    def _next(self, at: int, crashed: bool = False) -> None:
        number = self._numbers[at] + 1 & 0xFFFFFFFF
        if crashed:
            self._crashed[at] = number
        self._numbers[at] = number

    # The whole box.

    @property
    def triton(self) -> int:
        """The state of Triton: :data:`SERVES`, :data:`STARTS_AGAIN` or :data:`STOPPED`."""
        return self._integers[TRITON]

    @triton.setter
    def triton(self, state: int) -> None:
        """Only the supervisor sets it."""
        self._integers[TRITON] = state

    @property
    def triton_starts(self) -> int:
        """How often Triton was started."""
        return self._integers[STARTS]

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

    def resume(self) -> None:
        """Record that a standstill has ended. Only the supervisor calls it, before the next heartbeat."""
        self._seconds[RESUMED] = now()

    @property
    def resumed(self) -> float:
        """When the last standstill ended, on the boot clock; 0 if there was none."""
        return self._seconds[RESUMED]

    def settling(self) -> float:
        """Return the seconds until the workers have read what Triton said about the last standstill."""
        return self._seconds[RESUMED] + SETTLING_S - now() if self._seconds[RESUMED] else 0.0


@lru_cache(maxsize=SLOTS)  # asked several times for each call
def slot(model: str) -> int:
    """Return the index of a model's slot."""
    return zlib.crc32(model.encode()) % SLOTS


def now() -> float:
    """Return the time on the boot clock, which also counts while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _clocks() -> tuple[float, float]:
    return now(), time.time()
