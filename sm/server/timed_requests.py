"""Bound the time that a caller may take to send a request, where no nginx receives it."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

from sm.errors import RequestTimeout

#: Bytes a second of a request on average, at least: 128 kbit/s. A body of 25 MiB may take 27 minutes.
MIN_RATE = 16384


class TimedReader:
    """Reads a connection's requests, as gunicorn's parser expects it of a socket.

    Args:
        connection: The socket.
        timeout_s: Seconds for each piece, and for the whole request plus what :data:`MIN_RATE` allows.
        clock: Monotonic seconds.
    """

    def __init__(
        self, connection: socket.socket, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection, self._timeout_s, self._clock = connection, timeout_s, clock
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._drain_timeout_s: float | None = None
        self.begin_request()

    def begin_request(self) -> None:
        """Start the time of the next request."""
        self._began, self._received = self._clock(), 0

    def recv(self, size: int) -> bytes:
        """Receive up to ``size`` bytes. Raises :class:`RequestTimeout`."""
        allowed = self._timeout_s + self._received / MIN_RATE
        remaining = min(self._timeout_s, self._began + allowed - self._clock())
        if self._drain_timeout_s is not None:
            remaining = min(remaining, self._drain_timeout_s)
        if remaining <= 0 or not self._poll.poll(1000 * remaining):
            if self._drain_timeout_s is not None:
                raise TimeoutError
            raise RequestTimeout(
                f"the request did not arrive in time: {self._received:,} bytes came in "
                f"{self._clock() - self._began:.0f} s; send it faster, or in smaller bodies"
            )
        data = self._connection.recv(size)
        self._received += len(data)
        return data

    def gettimeout(self) -> float | None:
        """Return what :meth:`settimeout` set."""
        return self._drain_timeout_s

    def settimeout(self, seconds: float | None) -> None:
        """Limit each read. gunicorn does so when it discards the body of a request that it has answered."""
        self._drain_timeout_s = seconds
