"""Keep the log of a box that a person starts in a file of the cache, for ``sm logs``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sm.server.logs import Formatter, Sink
from sm.settings import Settings

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


def open_log(settings: Settings) -> Sink | None:
    """Open the log of this box, as JSON lines; None if it cannot be written."""
    formatter = Formatter(settings.level, text=False, colour=False)
    report_lost = formatter.report_lost("were lost: this file could not be written")
    try:
        file = LogFile(settings.cache / "logs" / f"{settings.port}.jsonl", report_lost)
    except OSError:
        return None
    return lambda process, members: file.write(formatter.line(process, members))
