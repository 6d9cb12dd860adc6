"""Download objects in ranges, several at once; an interrupted download goes on where it was.

An unfinished object is ``NAME.part``: its bytes, and behind them how many bytes of each range have come. That
survives the process, but not a machine without power, which may lose the bytes and keep the counts: so NAME
also tells the kernel's boot.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

Report = Callable[[str], None]

#: Requests at once, and the bytes of each: as the AWS CLI does it.
CONNECTIONS, RANGE_BYTES = 10, 8 * 2**20
#: Bytes after which a range's count is written, so at most lost when the process dies.
CHUNK_BYTES = 2**18
#: Seconds for which a download goes on while nothing comes, and between two attempts for a range. With the
#: timeouts of one attempt, a host that does not answer is reported within 30 s.
PATIENCE_S, RETRY_PAUSE_S = 15.0, 0.5
#: Seconds between two reports of the progress.
REPORT_INTERVAL_S = 1.0
PART = ".part"
COUNT = struct.Struct("<Q")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class BrokenConnection(Exception):
    """A connection broke; the next attempt may succeed."""


@dataclass(frozen=True)
class Remote:
    """One version of an object.

    Attributes:
        name: Of its file when it is complete.
        version: Tells it from other objects that have had this name.
        size: Bytes.
        read: Yields the bytes of this version from an offset to another, which is not included. Raises
            :class:`BrokenConnection` if the connection breaks.
    """

    name: str
    version: str
    size: int
    read: Callable[[int, int], Iterator[bytes]]


class DownloadProgress:
    """Counts the bytes that have come, for all threads of a download."""

    def __init__(self, report: Report, total: int) -> None:
        self._report, self._total = report, total
        self._started, self._lock, self._due, self.done = time.monotonic(), threading.Lock(), 0.0, 0
        self._newest = self._started

    def add(self, count: int) -> None:
        """Count bytes, and report the sum from time to time."""
        with self._lock:
            self.done += count
            self._newest = now = time.monotonic()
            if now >= self._due:
                self._due = now + REPORT_INTERVAL_S
                rate = self.done / max(now - self._started, 1e-3)
                left = max(self._total - self.done, 0)
                self._report(
                    f"fetched {self.done / 1e6:,.1f} MB at {rate / 1e6:,.1f} MB/s, {left / 1e6:,.1f} MB left"
                )

    def interrupt(self, error: BrokenConnection) -> None:
        """Report an attempt that has failed; raise ``error`` if nothing has come for long."""
        silent_s = time.monotonic() - self._newest
        if silent_s > PATIENCE_S:
            raise error
        self._report(f"{error}; trying again, the last bytes came {silent_s:.0f} s ago")


class PartialFile:
    """An object that is being downloaded; ``file`` is its place when it is complete."""

    def __init__(self, remote: Remote, file: Path) -> None:
        self._remote, self._file, self._lock = remote, file, threading.Lock()
        boot = BOOT_ID.read_text() if BOOT_ID.exists() else ""
        identity = "\0".join((remote.name, remote.version, str(RANGE_BYTES), boot))
        name = hashlib.sha256(identity.encode()).hexdigest()
        self.path = file.with_name(name + PART)
        self._starts = range(0, remote.size, RANGE_BYTES)
        self._length = remote.size + COUNT.size * len(self._starts)
        self._counts = self._read_counts()
        #: The numbers of the ranges that are not complete.
        self.missing = [number for number in range(len(self._starts)) if self._left(number)]
        self._unfinished = len(self.missing)
        #: Bytes that are to come.
        self.left = sum(map(self._left, self.missing))

    def _read_counts(self) -> list[int]:
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size == self._length:
                    file.seek(self._remote.size)
                    return [count for (count,) in COUNT.iter_unpack(file.read())]
        except FileNotFoundError:
            pass
        return [0] * len(self._starts)

    def _end(self, number: int) -> int:
        return min(self._starts[number] + RANGE_BYTES, self._remote.size)

    def _left(self, number: int) -> int:
        return self._end(number) - self._starts[number] - self._counts[number]

    def download(self, number: int, progress: DownloadProgress, stopped: threading.Event) -> None:
        """Download what is missing of a range."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.truncate(file, self._length)
            while not stopped.is_set():
                try:
                    self._copy(file, number, progress, stopped)
                    break
                except BrokenConnection as error:
                    progress.interrupt(error)
                    stopped.wait(RETRY_PAUSE_S)
        finally:
            os.close(file)
        if not stopped.is_set():
            with self._lock:
                self._unfinished -= 1
                if not self._unfinished:
                    self.finish()

    def _copy(self, file: int, number: int, progress: DownloadProgress, stopped: threading.Event) -> None:
        end = self._end(number)
        position = end - self._left(number)
        if position == end:
            return
        for chunk in self._remote.read(position, end):
            if stopped.is_set():
                return
            position += _write(file, chunk, position)
            self._counts[number] += len(chunk)
            _write(file, COUNT.pack(self._counts[number]), self._remote.size + COUNT.size * number)
            progress.add(len(chunk))
        if position != end:
            raise BrokenConnection(f"it ended after {position:,} of {self._remote.size:,} bytes")

    def finish(self) -> None:
        """Give a complete object its name."""
        with self.path.open("ab") as file:
            file.truncate(self._remote.size)
        self.path.rename(self._file)


def download(parts: Sequence[PartialFile], report: Report) -> int:
    """Download objects; return how many bytes have come.

    Raises:
        BrokenConnection: A host does not answer, or has ended its answers early.
    """
    progress, stopped = DownloadProgress(report, sum(part.left for part in parts)), threading.Event()
    for part in parts:
        if not part.missing:
            part.finish()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        tasks = [
            pool.submit(part.download, number, progress, stopped) for part in parts for number in part.missing
        ]
        try:
            for task in as_completed(tasks):
                task.result()
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return progress.done


def _write(file: int, chunk: bytes, position: int) -> int:
    """Write all of a chunk; return its length."""
    view = memoryview(chunk)
    while view:
        written = os.pwrite(file, view, position)
        view, position = view[written:], position + written
    return len(chunk)
