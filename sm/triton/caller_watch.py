"""Notice that the caller of a stream has left while its thread waits for Triton."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sm.deadline import Deadline

#: Seconds between two looks.
POLL_INTERVAL_S = 0.1


class CallerWatch:
    """Whether the caller has hung up; ``cancel`` is called once it has."""

    def __init__(self, deadline: Deadline, cancel: Callable[[], object]) -> None:
        self._deadline, self._cancel = deadline, cancel
        self._over = threading.Event()
        self.gone = False

    def poll(self) -> None:
        """Look again and again until it is over."""
        while not self._over.wait(POLL_INTERVAL_S):
            if self._deadline.is_disconnected():
                self.gone = True
                self._cancel()
                return

    def end(self) -> None:
        self._over.set()


@contextmanager
def watch_caller(deadline: Deadline | None, cancel: Callable[[], object]) -> Iterator[CallerWatch | None]:
    """A watch in a thread of its own; none for work that has no caller."""
    if deadline is None:
        yield None
        return
    watch = CallerWatch(deadline, cancel)
    thread = threading.Thread(target=watch.poll, name="watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.end()
        # The connection it looks at may be another caller's afterwards.
        thread.join()
