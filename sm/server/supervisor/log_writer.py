"""Write the log to standard output without blocking, even if it is slow or closed, and to a file."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from selectors import EVENT_WRITE, BaseSelector
from typing import Any

from sm.server.logs import Formatter

#: Bytes of the file. One older file is kept beside it, so a log takes at most twice as many.
MAX_BYTES = 64 * 2**20


class LogFile:
    """Appends lines to a file. A disk that is full or gone never stops the box: lines are lost and counted.

    Args:
        path: The file; the older one is called ``PATH.1``.
        report_lost: Returns the line that reports a number of lost lines.
        max_bytes: The file is rotated before it would exceed this size.
    """

    def __init__(self, path: Path, report_lost: Callable[[int], bytes], max_bytes: int = MAX_BYTES) -> None:
        """Raises OSError if the file cannot be written."""
        self._path, self._report_lost, self._max_bytes = path, report_lost, max_bytes
        self._lost_lines = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = self._open()

    def write(self, line: bytes) -> None:
        """Append a line with its line end."""
        note = self._report_lost(self._lost_lines) if self._lost_lines else b""
        try:
            if self._size + len(note) + len(line) > self._max_bytes:
                self._rotate()
            self._append(note + line)
        except OSError:
            self._lost_lines += 1
        else:
            self._lost_lines = 0

    def close(self) -> None:
        os.close(self._descriptor)

    def _append(self, data: bytes) -> None:
        written = os.write(self._descriptor, data)
        if written < len(data):
            # The disk is full in the middle of the line: a half line would spoil the next one.
            os.ftruncate(self._descriptor, self._size)
            raise OSError("the disk is full")
        self._size += written

    def _rotate(self) -> None:
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        old, self._descriptor = self._descriptor, self._open()
        os.close(old)

    def _open(self) -> int:
        # Only for the user: a log names callers' keys and models.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(descriptor).st_size
        return descriptor


#: Bytes that wait for a slow reader. Further lines are dropped and counted: if the supervisor stopped reading
#: the children's output instead, they would block.
MAX_BUFFERED_BYTES = 4 * 2**20
#: A pipe that is ready accepts this much without blocking (PIPE_BUF).
PIPE_BUF_BYTES = 4096


class NonBlockingWriter:
    """Writes to a file descriptor when it is ready, and never waits.

    The descriptor is not made non-blocking, as that would apply to every process that shares the terminal.
    """

    def __init__(self, descriptor: int, selector: BaseSelector, report_lost: Callable[[int], bytes]) -> None:
        """``report_lost`` returns the line that reports a number of dropped lines."""
        self.descriptor, self.selector, self.report_lost = descriptor, selector, report_lost
        self._buffer: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._dropped = 0
        self._reader_gone = False

    def write(self, line: bytes) -> None:
        """Write one line with its line end."""
        if self._reader_gone:
            return
        if self._buffered_bytes + len(line) > MAX_BUFFERED_BYTES:
            self._dropped += 1
            return
        if self._dropped:
            note, self._dropped = self.report_lost(self._dropped), 0
            self._append(note)
        self._append(line)

    def flush(self, seconds: float) -> None:
        """Write what is waiting, for at most ``seconds``."""
        end = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        while self._buffer and (remaining := end - time.monotonic()) > 0:
            if poll.poll(remaining * 1000):
                self._write()

    def _append(self, line: bytes) -> None:
        if not self._buffer:
            try:
                self.selector.register(self.descriptor, EVENT_WRITE, self._write)
            except (OSError, ValueError):
                self._give_up()
                return
        self._buffer.append(line)
        self._buffered_bytes += len(line)

    def _write(self) -> None:
        chunk = b"".join(self._take(PIPE_BUF_BYTES))
        try:
            written = os.write(self.descriptor, chunk)
        except BlockingIOError:  # somebody else made it non-blocking
            written = 0
        except OSError:
            self._give_up()
            return
        if written < len(chunk):
            self._buffer.appendleft(chunk[written:])
            self._buffered_bytes += len(chunk) - written
        if not self._buffer:
            self.selector.unregister(self.descriptor)

    def _take(self, max_bytes: int) -> list[bytes]:
        """Remove at most ``max_bytes`` from the buffer and return them."""
        lines: list[bytes] = []
        while self._buffer and max_bytes > 0:
            line = self._buffer.popleft()
            self._buffered_bytes -= len(line)
            if len(line) > max_bytes:
                self._buffer.appendleft(line[max_bytes:])
                self._buffered_bytes += len(line) - max_bytes
                line = line[:max_bytes]
            lines.append(line)
            max_bytes -= len(line)
        return lines

    def _give_up(self) -> None:
        """Stop writing: the reader is gone for good."""
        self._reader_gone = True
        if self.descriptor in self.selector.get_map():
            self.selector.unregister(self.descriptor)
        self._buffer.clear()
        self._buffered_bytes = 0


class Log:
    """Writes the lines of all processes to one output, also before the event loop runs."""

    def __init__(
        self,
        formatter: Formatter,
        selector: BaseSelector,
        descriptor: int = 1,
        file: tuple[Formatter, LogFile] | None = None,
    ) -> None:
        """``file``: a log file that gets the lines too, with its own formatter."""
        self._formatter, self._file = formatter, file
        self.output = NonBlockingWriter(descriptor, selector, self._count_lost)

    def write(self, process: str, members: Mapping[str, Any]) -> None:
        line = self._formatter.line(process, members)
        if line:
            self.output.write(line)
        if line and self._file:
            formatter, file = self._file
            file.write(formatter.line(process, members))

    def log(self, level: str, message: str) -> None:
        """Log a line of the supervisor itself."""
        self.write("serve", {"level": level, "message": message})

    def fail(self, message: str, traceback: str) -> None:
        """Log an error of the supervisor with its traceback."""
        self.write("serve", {"level": "critical", "message": message, "traceback": traceback})

    def _count_lost(self, count: int) -> bytes:
        message = f"{count} lines were dropped: standard output is read too slowly"
        return self._formatter.line("serve", {"level": "error", "message": message})


def open_log_file(path: Path, level: str) -> tuple[Formatter, LogFile]:
    """Open a file for the log, as JSON lines. Raises OSError."""
    formatter = Formatter(level, text=False, colour=False)

    def count_lost(count: int) -> bytes:
        message = f"{count} lines were lost: this file could not be written"
        return formatter.line("serve", {"level": "error", "message": message})

    return formatter, LogFile(path, count_lost)
