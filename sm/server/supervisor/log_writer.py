"""Write to standard output without blocking, though it may be slow or closed."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable, Mapping
from selectors import EVENT_WRITE, BaseSelector
from typing import Any

from sm.logs import Formatter

#: Bytes that wait for a slow reader at most. What comes on top is dropped and counted: lost lines are better
#: than children that stand still because nobody reads their logs.
MAX_BUFFERED_BYTES = 4 * 2**20
#: A pipe that is ready takes this much without blocking (PIPE_BUF).
CHUNK = 4096


class NonBlockingWriter:
    """Writes to a file descriptor when it is ready, never waiting for it.

    The descriptor is not made non-blocking: that would be so for everybody who shares the terminal.
    """

    def __init__(self, descriptor: int, selector: BaseSelector, lost: Callable[[int], bytes]) -> None:
        """``lost(n)`` is the line that tells of ``n`` dropped ones."""
        self.descriptor, self.selector, self.lost = descriptor, selector, lost
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._gone = False

    def write(self, line: bytes) -> None:
        """One whole line, its end included."""
        if self._gone:
            return
        if self._size + len(line) > MAX_BUFFERED_BYTES:
            self._dropped += 1
            return
        if self._dropped:
            note, self._dropped = self.lost(self._dropped), 0
            self._append(note)
        self._append(line)

    def flush(self, seconds: float) -> None:
        """Write what waits, for at most so long."""
        end = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        while self._waiting and (left := end - time.monotonic()) > 0:
            if poll.poll(left * 1000):
                self._write()

    def _append(self, line: bytes) -> None:
        if not self._waiting:
            try:
                self.selector.register(self.descriptor, EVENT_WRITE, self._write)
            except (OSError, ValueError):
                self._give_up()
                return
        self._waiting.append(line)
        self._size += len(line)

    def _write(self) -> None:
        chunk = b"".join(self._take(CHUNK))
        try:
            written = os.write(self.descriptor, chunk)
        except BlockingIOError:  # somebody else made it non-blocking
            written = 0
        except OSError:
            self._give_up()
            return
        if written < len(chunk):
            self._waiting.appendleft(chunk[written:])
            self._size += len(chunk) - written
        if not self._waiting:
            self.selector.unregister(self.descriptor)

    def _take(self, most: int) -> list[bytes]:
        taken: list[bytes] = []
        while self._waiting and most > 0:
            line = self._waiting.popleft()
            self._size -= len(line)
            if len(line) > most:
                self._waiting.appendleft(line[most:])
                self._size += len(line) - most
                line = line[:most]
            taken.append(line)
            most -= len(line)
        return taken

    def _give_up(self) -> None:
        """Nobody will ever read again."""
        self._gone = True
        if self.descriptor in self.selector.get_map():
            self.selector.unregister(self.descriptor)
        self._waiting.clear()
        self._size = 0


class Log:
    """Lines of all processes on one output. Works before the event loop does."""

    def __init__(self, formatter: Formatter, selector: BaseSelector, descriptor: int = 1) -> None:
        self._formatter = formatter
        self.sink = NonBlockingWriter(descriptor, selector, self._count_lost)

    def write(self, process: str, members: Mapping[str, Any]) -> None:
        line = self._formatter.line(process, members)
        if line:
            self.sink.write(line)

    def log(self, level: str, message: str) -> None:
        """In the supervisor's own name."""
        self.write("serve", {"level": level, "message": message})

    def fail(self, message: str, traceback: str) -> None:
        """An error with its traceback, in the supervisor's own name."""
        self.write("serve", {"level": "critical", "message": message, "traceback": traceback})

    def _count_lost(self, count: int) -> bytes:
        message = f"{count} lines were dropped: standard output is read too slowly"
        return self._formatter.line("serve", {"level": "error", "message": message})
