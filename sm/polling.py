"""Call a function every few seconds in a thread of its own, or once for many callers."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

#: Seconds between two looks at what nobody announces: while somebody waits for it; at what changes while the
#: box runs; and at what is costly to look at, or has been announced to those who need it soon. See also
#: :data:`sm.invocation.LOOK_S`.
POLL_S, WATCH_S, SLOW_WATCH_S = 0.02, 0.5, 2.0
T = TypeVar("T")


#: The polls that run in this process.
_running: set[Poll] = set()


class Poll:
    """A daemon thread that calls ``function`` every ``interval_s`` seconds until it is stopped.

    An exception of ``function`` is logged, and it is called again after the next interval. A process that
    ends stops its polls with :func:`stop_all`.

    Args:
        name: The name of the thread, also in the log.
        interval_s: Seconds between the end of one call and the next.
        function: The function to call. It may call :meth:`stop`.
        first_s: Seconds before the first call, if these are others.
    """

    def __init__(
        self,
        name: str,
        interval_s: float,
        function: Callable[[], object],
        *,
        first_s: float | None = None,
    ) -> None:
        self._name, self._interval_s, self._function = name, interval_s, function
        self._first_s = interval_s if first_s is None else first_s
        self._stopped, self._calling = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        _running.add(self)
        self._thread.start()

    def stop(self) -> None:
        """Do not call again. A call that is running ends."""
        self._stopped.set()

    def join(self, seconds: float = -1) -> None:
        """Wait for the end of a running call, for ever without ``seconds``. ``function`` must not call it."""
        if self._calling.acquire(timeout=seconds):
            self._calling.release()

    def _run(self) -> None:
        seconds = self._first_s
        while not self._stopped.wait(seconds):
            with self._calling:
                self._call()
            seconds = self._interval_s
        _running.discard(self)

    def _call(self) -> None:
        if self._stopped.is_set():  # while it waited for the lock
            return
        try:
            self._function()
        except BaseException:  # a client that is reloaded may call sys.exit()
            log.exception("%s failed; next try in %g s", self._name, self._interval_s)


def stop_all(seconds: float) -> None:
    """Stop the polls of this process, and wait at most ``seconds`` for the calls that run."""
    polls, end = list(_running), time.monotonic() + seconds
    for poll in polls:
        poll.stop()
    for poll in polls:
        poll.join(max(0.0, end - time.monotonic()))


def poll_until(look: Callable[[], T], seconds: float) -> T:
    """Call ``look`` until it returns something true, or ``seconds`` have passed; return its last value."""
    end = time.monotonic() + seconds
    while not (found := look()) and (left := end - time.monotonic()) > 0:
        time.sleep(min(POLL_S, left))
    return found


class SharedQuestion(Generic[T]):
    """Asks a slow ``function`` once for all who wait, in a thread of its own, and remembers what it said.

    Args:
        function: Returns the answer.
        keep_s: Seconds for which an answer is not asked for again.
        keep_failure_s: The same for a failure.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        function: Callable[[], T],
        keep_s: float,
        keep_failure_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._function, self._keep_s, self._keep_failure_s = function, keep_s, keep_failure_s
        self._clock, self._lock = clock, threading.Lock()
        self._running: Future[None] | None = None
        self._last: Future[T] | None = None
        self._answered_at = -math.inf

    def ask(self, patience_s: float) -> T:
        """Return the answer; the last one if none comes within ``patience_s``.

        Raises:
            TimeoutError: There is none yet.
            Exception: What the function raised.
        """
        with self._lock:
            last, age = self._last, self._clock() - self._answered_at
            if last is not None and age < (self._keep_failure_s if last.exception() else self._keep_s):
                return _value(last)
            if self._running is None:
                self._running = Future()
                threading.Thread(target=self._answer, args=(self._running,), daemon=True).start()
            running = self._running
        wait([running], patience_s)
        with self._lock:
            last = self._last
        if last is None:
            raise TimeoutError
        return _value(last)

    def _answer(self, running: Future[None]) -> None:
        answer: Future[T] = Future()
        try:
            answer.set_result(self._function())
        except BaseException as error:
            answer.set_exception(error)
        with self._lock:
            self._last, self._running, self._answered_at = answer, None, self._clock()
        running.set_result(None)


def _value(answer: Future[T]) -> T:
    if error := answer.exception():
        # It is raised many times, and each would add to its traceback.
        raise error.with_traceback(None)
    return answer.result()
