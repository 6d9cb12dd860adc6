"""Notice that a stream's caller has disconnected while the stream's thread waits for Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sm.deadline import Deadline
from sm.polling import Poll

#: Seconds between two checks.
POLL_INTERVAL_S = 0.1


class CallerWatch:
    """Calls ``cancel`` once the caller has disconnected; ``gone`` is then True."""

    def __init__(self, deadline: Deadline, cancel: Callable[[], object]) -> None:
        self._deadline, self._cancel = deadline, cancel
        self.gone = False
        self.poll = Poll("caller-watch", POLL_INTERVAL_S, self._check)

    def _check(self) -> None:
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
        # Wait for the thread: after this the connection may serve another caller.
        watch.poll.join()
