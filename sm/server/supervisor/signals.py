"""Signals as events: a handler does nothing but put a byte into a pipe."""

from __future__ import annotations

import contextlib
import signal
import socket

#: Somebody wants the box to stop.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """``reading`` is readable when signals have come."""

    def __init__(self) -> None:
        self.reading, writing = socket.socketpair()
        self.reading.setblocking(False)
        writing.setblocking(False)
        self._writing = writing
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        for number in (*STOPPING, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def take(self) -> list[int]:
        """The numbers that came since the last call."""
        with contextlib.suppress(BlockingIOError):
            return list(self.reading.recv(4096))
        return []
