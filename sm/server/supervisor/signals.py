"""Signals as events: a handler only writes a byte into a pipe."""

from __future__ import annotations

import contextlib
import signal
import socket

#: Signals that stop the box.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """``reading`` is readable when signals have arrived."""

    def __init__(self) -> None:
        self.reading, writing = socket.socketpair()
        self.reading.setblocking(False)
        writing.setblocking(False)
        self._writing = writing
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        for number in (*STOPPING, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def take(self) -> list[int]:
        """Return the numbers of the signals since the last call."""
        with contextlib.suppress(BlockingIOError):
            return list(self.reading.recv(4096))
        return []
