"""Signals as events: a handler only writes a byte into a pipe."""

from __future__ import annotations

import contextlib
import signal
import socket

#: Signals that stop the box.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Receives the box's signals. The socket ``receiver`` is readable when some have arrived."""

    def __init__(self) -> None:
        self.receiver, sender = socket.socketpair()
        self.receiver.setblocking(False)
        sender.setblocking(False)
        self._sender = sender
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        for number in (*STOPPING, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def read(self) -> list[int]:
        """Return the numbers of the signals since the last call."""
        with contextlib.suppress(BlockingIOError):
            return list(self.receiver.recv(4096))
        return []
