"""Notice that the caller of a stream has left while its thread waits for Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sm.deadline import Deadline
from sm.polling import Poll

#: Seconds between two checks.
POLL_INTERVAL_S = 0.1


class CallerWatch:
    """Checks whether the caller disconnected, and then calls ``cancel``."""

    def __init__(self, deadline: Deadline, cancel: Callable[[], object]) -> None:
        self._deadline, self._cancel = deadline, cancel
        self.gone = False
        self.poll = Poll("caller-watch", POLL_INTERVAL_S, self._look)

    def _look(self) -> None:
        if self._deadline.is_disconnected():
            self.gone = True
            self.poll.stop()
            self._cancel()


@contextmanager
def watch_caller(deadline: Deadline | None, cancel: Callable[[], object]) -> Iterator[CallerWatch | None]:
    """Watch the caller in a thread; without a caller, no thread is started."""
    if deadline is None:
        yield None
        return
    watch = CallerWatch(deadline, cancel)
    watch.poll.start()
    try:
        yield watch
    finally:
        watch.poll.stop()
        # Wait for the thread: afterwards the connection may belong to another caller.
        watch.poll.join()
