"""Looks after the caller of a stream while its thread waits for Triton."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sm.deadline import Deadline

#: Seconds between two looks.
EVERY = 0.1


class Watch:
    """Whether the caller has hung up; ``cancel`` is called once it has."""

    def __init__(self, deadline: Deadline, cancel: Callable[[], object]) -> None:
        self._deadline, self._cancel = deadline, cancel
        self._over = threading.Event()
        self.gone = False

    def look(self) -> None:
        """Look again and again until it is over."""
        while not self._over.wait(EVERY):
            if self._deadline.hung_up():
                self.gone = True
                self._cancel()
                return

    def end(self) -> None:
        self._over.set()


@contextmanager
def watching(deadline: Deadline | None, cancel: Callable[[], object]) -> Iterator[Watch | None]:
    """A watch in a thread of its own; none for work that has no caller."""
    if deadline is None:
        yield None
        return
    watch = Watch(deadline, cancel)
    thread = threading.Thread(target=watch.look, name="watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.end()
        # The connection it looks at may be another caller's afterwards.
        thread.join()
