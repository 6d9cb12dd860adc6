"""A file with the lines of the log, for ``sm logs --local``. It is begun anew when it is large."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

#: Bytes of the file. The file before it is kept beside it, so a log takes at most twice as many.
MAX_BYTES = 64 * 2**20


class LogFile:
    """Appends lines to a file. A disk that is full or gone never stops the box: lines are lost and counted.

    Args:
        path: The file; the one before it is called ``PATH.1``.
        lost: ``lost(n)`` returns the line that reports ``n`` lost lines.
        max_bytes: Size at which the file is begun anew.
    """

    def __init__(self, path: Path, lost: Callable[[int], bytes], max_bytes: int = MAX_BYTES) -> None:
        """Raises OSError if the file cannot be written."""
        self._path, self._lost, self._max_bytes = path, lost, max_bytes
        self._missing = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = self._open()

    def write(self, line: bytes) -> None:
        """Append a line with its line end."""
        note = self._lost(self._missing) if self._missing else b""
        try:
            if self._size + len(note) + len(line) > self._max_bytes:
                self._begin_anew()
            self._append(note + line)
        except OSError:
            self._missing += 1
        else:
            self._missing = 0

    def close(self) -> None:
        os.close(self._descriptor)

    def _append(self, data: bytes) -> None:
        written = os.write(self._descriptor, data)
        if written < len(data):
            # The disk is full in the middle of the line: a half line would spoil the next one.
            os.ftruncate(self._descriptor, self._size)
            raise OSError("the disk is full")
        self._size += written

    def _begin_anew(self) -> None:
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        old, self._descriptor = self._descriptor, self._open()
        os.close(old)

    def _open(self) -> int:
        # Only for the user: a log names callers' keys and models.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(descriptor).st_size
        return descriptor
