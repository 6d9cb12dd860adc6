"""Call a function every few seconds in a thread of its own, or at most so often for many callers."""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger(__name__)

#: Bytes that are read at once: so many calls to wake a poll count as one.
MAX_WAKES = 4096
T = TypeVar("T")


class Poll:
    """A daemon thread that calls ``function`` every ``interval_s`` seconds until it is stopped.

    An exception of ``function`` is logged, and it is called again after the next interval.

    Args:
        name: The name of the thread, also in the log.
        interval_s: Seconds between the end of one call and the next, and before the first.
        function: The function to call. It may call :meth:`stop`.
        at_once: Call it at the start too, before the first interval has passed.
        wake: A pipe's end that does not block. Call the function at once when something can be read.
    """

    def __init__(
        self,
        name: str,
        interval_s: float,
        function: Callable[[], object],
        *,
        at_once: bool = False,
        wake: int | None = None,
    ) -> None:
        self._name, self._interval_s, self._function = name, interval_s, function
        self._at_once, self._wake = at_once, wake
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Do not call again. A call that is running ends."""
        self._stopped.set()

    def join(self) -> None:
        """Wait for the end of a running call. ``function`` itself must not call it."""
        self._thread.join()

    def _run(self) -> None:
        if self._at_once:
            self._call()
        while not self._wait():
            self._call()

    def _wait(self) -> bool:
        """Wait for the next call. Returns True if there is none."""
        if self._wake is None:
            return self._stopped.wait(self._interval_s)
        if select.select([self._wake], [], [], self._interval_s)[0]:
            os.read(self._wake, MAX_WAKES)
        return self._stopped.is_set()

    def _call(self) -> None:
        try:
            self._function()
        except BaseException:  # a client that is reloaded may call sys.exit()
            log.exception("%s failed; next try in %g s", self._name, self._interval_s)


def at_most_every(
    seconds: float, function: Callable[[], T], clock: Callable[[], float] = time.monotonic
) -> Callable[[], T]:
    """Return a function that calls ``function``, or returns its last value if that is not so old yet."""
    lock, values, called_at = threading.Lock(), list[T](), -math.inf

    def read() -> T:
        nonlocal called_at
        with lock:
            if clock() - called_at >= seconds:
                values[:] = [function()]
                # Whoever waited meanwhile gets this value, however long it took.
                called_at = clock()
            return values[0]

    return read
