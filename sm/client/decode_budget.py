"""Limit the memory that a worker uses for decoding. A request acquires its share before it decodes."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sm.errors import DECODE_SETTING, Overloaded, TooLarge
from sm.hardware import memory_limit
from sm.http.messages import LARGE_BODY_BYTES, without_texts
from sm.invocation import current, wait
from sm.metrics import DECODED_BYTES
from sm.polling import poll_until
from sm.settings import Settings

#: Bytes of memory for each comma or bracket of JSON: 26 to 60 for numbers, 46 for lists, 128 for objects.
BYTES_PER_MARK = 64
#: So many of them in a body are not accounted for.
MAX_UNCOUNTED_MARKS = 1000
#: A request that finds no room for this long is rejected. Other decodes usually end within that time.
MAX_WAIT_S = 5.0
#: Bytes of an answer that are not counted, and by which the room of a larger one grows at least.
ROOM_STEP_BYTES = 2**20
#: The share of a budget that is kept free for models that hold less than that: of 256 MiB it is a JPEG of 11
#: megapixels, and a model alone loses little.
RESERVED_SHARE = 1 / 8
#: The default limit for all workers together, as a share of the available memory, and the least bytes for
#: each worker: enough for a PNG of 36 megapixels.
MEMORY_SHARE, MIN_LIMIT_BYTES = 0.25, 2**28


class DecodeBudget:
    """At most ``limit`` bytes for running decodes and for decoded pixels that are still in use.

    JSON is parsed within :meth:`reserve`. For a picture, :meth:`acquire` the bytes of the peak; after the
    decode, :meth:`keep` the pixels' bytes, or :meth:`release` all if there is no result.

    Bytes count for the model of the request, so that no model keeps others out: one that holds more than
    :data:`RESERVED_SHARE` leaves as much free, and gets nothing more while a model that holds nothing waits.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._used = 0
        #: Bytes and waiting requests by model; the empty name is for work that belongs to no request.
        self._held: dict[str, int] = {}
        self._waiting: Counter[str] = Counter()
        self._lock = threading.Lock()
        #: Models and sizes of pixels that are gone, not yet subtracted. Finalizers append without the lock,
        #: because they may run while this class holds it.
        self._freed: deque[tuple[str, int]] = deque()

    def acquire(self, size: int, model: str | None = None) -> str:
        """Wait for room, take ``size`` bytes, and return the model that they count for.

        Args:
            size: Bytes.
            model: The model; that of the current request by default.

        Raises:
            TooLarge: ``size`` is more than the whole budget.
            Overloaded: There was no room for :data:`MAX_WAIT_S`.
            DeadlinePassed: The invocation's time is over.
        """
        if size > self.limit:
            raise TooLarge(
                f"decoding the body takes {size / 2**20:,.0f} MiB of memory; at most "
                f"{self.limit / 2**20:,.0f} MiB are accepted: send less at once, or raise {DECODE_SETTING}",
                setting=DECODE_SETTING,
            )
        model = _current_model() if model is None else model
        if not self._try_acquire(size, model):
            self._wait(size, model)
        return model

    def release(self, size: int, model: str | None = None) -> None:
        """Give ``size`` bytes back."""
        with self._lock:
            self._count(_current_model() if model is None else model, -size)

    @contextmanager
    def reserve(self, size: int, model: str | None = None) -> Iterator[None]:
        """Acquire ``size`` bytes for a ``with`` block; see :meth:`acquire`."""
        if not size:
            yield
            return
        model = self.acquire(size, model)
        try:
            yield
        finally:
            self.release(size, model)

    def keep(self, acquired: int, pixels: NDArray[np.uint8], model: str) -> None:
        """Keep the bytes of ``pixels`` until their last view is gone; release the rest of ``acquired``."""
        # The base of a view is the array that owns the memory, also if it is a view of a view.
        owner = pixels if pixels.base is None else pixels.base
        finalizer = weakref.finalize(owner, self._freed.append, (model, pixels.nbytes))
        finalizer.atexit = False
        if acquired != pixels.nbytes:
            self.release(acquired - pixels.nbytes, model)

    def room(self) -> Room:
        """Return room for an answer of the current request, which grows as the answer does."""
        return Room(self)

    def most(self) -> int:
        """Return the bytes that a model may get piece by piece, which leaves others their part."""
        return self.limit - int(RESERVED_SHARE * self.limit)

    def collect(self) -> None:
        """Subtract the bytes of pixels that are gone. Every other method does so too."""
        self.release(0)

    def freed(self, model: str, size: int) -> None:
        """Note bytes that are free, without the lock; they are subtracted soon."""
        self._freed.append((model, size))

    def _wait(self, size: int, model: str) -> None:
        """Poll until there is room: finalizers give bytes back without notifying anybody."""
        give_up_at = time.monotonic() + MAX_WAIT_S

        def give_up() -> None:
            if time.monotonic() > give_up_at:
                raise Overloaded("the memory for pictures and large JSON is in use")

        with self._lock:
            self._waiting[model] += 1
        try:
            wait(partial(poll_until, partial(self._try_acquire, size, model)), current(), give_up)
        finally:
            with self._lock:
                self._waiting[model] -= 1
                if not self._waiting[model]:
                    del self._waiting[model]

    def _try_acquire(self, size: int, model: str) -> bool:
        with self._lock:
            # So little is every model's, whatever the others hold.
            if self._used + size > RESERVED_SHARE * self.limit:
                self._count()
                if self._used + size > self._limit_for(model, size):
                    return False
            self._count(model, size)
            return True

    def _limit_for(self, model: str, size: int) -> int:
        """Return the bytes that may be in use once ``model`` has ``size`` more. The caller holds the lock."""
        held, reserved = self._held.get(model, 0), int(RESERVED_SHARE * self.limit)
        if not model or not held or held + size <= reserved:
            return self.limit
        has_starved = not all(waiting in self._held for waiting in self._waiting)
        return 0 if has_starved else self.most()

    def _count(self, model: str = "", size: int = 0) -> None:
        """Count ``size`` more bytes of a model, and those that are free again. The caller holds the lock."""
        freed, held = self._freed, self._held
        freed.append((model, -size))
        while freed:
            model, size = freed.popleft()
            self._used -= size
            held[model] = held.get(model, 0) - size
            if not held[model]:
                del held[model]
        DECODED_BYTES.set(self._used)


class Room:
    """Bytes of a budget for an answer: they grow with it, and are free again when it is sent or dropped."""

    __slots__ = ("_budget", "_held", "_model")

    def __init__(self, budget: DecodeBudget) -> None:
        self._budget, self._model, self._held = budget, _current_model(), 0

    def grow(self, size: int) -> None:
        """Hold ``size`` bytes in all.

        Raises:
            TooLarge: The budget has never so much room.
            Overloaded, DeadlinePassed: See :meth:`DecodeBudget.acquire`.
        """
        if size <= max(self._held, ROOM_STEP_BYTES):
            return
        if size > self._budget.most():
            raise TooLarge(
                f"the answer takes {size / 2**20:,.0f} MiB of memory or more; at most "
                f"{self._budget.most() / 2**20:,.0f} MiB are accepted: ask for fewer records at once, "
                f"or raise {DECODE_SETTING}",
                max_answer_bytes=self._budget.most(),
                setting=DECODE_SETTING,
            )
        size = min(max(size, self._held + ROOM_STEP_BYTES), self._budget.most())
        self._budget.acquire(size - self._held, self._model)
        self._held = size

    def close(self) -> None:
        """Give the bytes back."""
        held, self._held = self._held, 0
        self._budget.freed(self._model, held)

    def __del__(self) -> None:
        self.close()


def bytes_of_marks(count: int) -> int:
    """Estimate the memory of parsed text with so many commas, brackets or lines; 0 for few."""
    return BYTES_PER_MARK * count if count > MAX_UNCOUNTED_MARKS else 0


def bytes_of_json(text: bytes) -> int:
    """Estimate the memory of parsed JSON; 0 if it is small. 25 MiB of empty lists become 760 MiB."""
    if len(text) < LARGE_BODY_BYTES:
        return 0
    return bytes_of_marks(sum(map(without_texts(text).count, (b",", b"[", b"{"))))


def _current_model() -> str:
    invocation = current()
    return invocation.slot_model if invocation is not None else ""


#: The budget of this process. A worker sets its limit; a developer's tool has none.
DECODED = DecodeBudget(sys.maxsize)


def limit_per_worker(settings: Settings) -> int:
    """Return the bytes that each worker may use."""
    if settings.decode_memory_mb:
        return int(settings.decode_memory_mb * 2**20)
    return max(MIN_LIMIT_BYTES, int(MEMORY_SHARE * memory_limit() / settings.worker_count))
