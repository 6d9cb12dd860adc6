"""Space for the files of prometheus_client's multi-process mode: no full memory or disk ends a process.

The library maps files that grow with holes. A count that falls into a hole for which there is no room kills
the process (SIGBUS). So the workers' space is reserved at the start, and a process that begins takes over the
files of one that has ended, with its counts. Without room it counts in memory of its own, and it serves.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import tempfile
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.mmap_dict import MmapedDict, mmap_key

log = logging.getLogger(__name__)

NO_ROOM = "/metrics is without the counts of process %d: no room (%s)"
#: The library's variable: the folder of the files.
VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
#: Bytes of a worker's files by kind of series: for 64 models, and for what the clients count.
WORKER_BYTES = {
    "counter": 2**19,
    "histogram": 5 * 2**20,
    "gauge_livesum": 2**17,
    "gauge_livemin": 2**16,
    "gauge_livemax": 2**16,
    "gauge_livemostrecent": 2**16,
}
#: The part of it that the clients may take.
CLIENT_BYTES = {**WORKER_BYTES, "counter": 2**18, "histogram": 3 * 2**19, "gauge_livesum": 2**16}
#: Bytes of a number beside its name, at most: the name's length and padding, value and time.
ENTRY_BYTES = 28
#: Bytes of another process's files. It has no histograms.
PROCESS_BYTES = {"counter": 2**18, "gauge_livesum": 2**16}


def reserve(folder: Path, workers: int) -> None:
    """Reserve the files of so many workers, before the first of them starts."""
    forget_gauges(folder)
    try:
        for number in range(workers - len(_counters(folder, WORKER_BYTES))):
            for kind, size in WORKER_BYTES.items():
                _allocate(folder / f"{kind}_new-{number}.db", size)
    except OSError as error:
        log.warning("/metrics may be without the counts of some workers: no room in %s (%s)", folder, error)


def open_files() -> None:
    """Give this process its files before it has series; if there is no room, it counts in its own memory."""
    if folder := os.environ.get(VARIABLE):
        try:
            _take_over(Path(folder), PROCESS_BYTES)
        except OSError as error:
            log.warning(NO_ROOM, os.getpid(), error)
            del os.environ[VARIABLE]


def take_over(folder: Path, sizes: Mapping[str, int]) -> None:
    """Give this process, whose series are known, the files of one that has ended, else new ones.

    Without room it counts in its own memory. Raises :class:`OSError`: there is no memory either.
    """
    os.environ[VARIABLE] = str(folder)
    try:
        _take_over(folder, sizes)
    except OSError as error:
        log.warning(NO_ROOM, os.getpid(), error)
        os.environ[VARIABLE] = own = tempfile.mkdtemp(dir=folder)
        for kind, size in sizes.items():
            memory = os.memfd_create(kind)
            os.posix_fallocate(memory, 0, size)
            Path(own, f"{kind}_{os.getpid()}.db").symlink_to(f"/proc/self/fd/{memory}")


def _take_over(folder: Path, sizes: Mapping[str, int]) -> None:
    forget_gauges(folder)
    with _locked(folder):
        own = str(os.getpid())
        ended = next((process for process in _counters(folder, sizes) if not _lives(process)), "")
        if (folder / f"counter_{own}.db").exists():
            ended = own  # a process that had the same number
        for kind, size in sizes.items():
            path, old = folder / f"{kind}_{own}.db", folder / f"{kind}_{ended}.db"
            if old.exists():
                old.rename(path)
            _allocate(path, size)
            if kind.startswith("gauge"):
                _forget(path)


def counted(kind: str) -> Iterator[tuple[str, str, dict[str, str], int]]:
    """Yield the numbers that this process has in its file, also those that it took over.

    Each is its metric, that one's description, its labels, and the bytes that it takes.
    """
    path = Path(os.environ.get(VARIABLE, ""), f"{kind}_{os.getpid()}.db")
    if path.is_file():
        for key, *_ in MmapedDict.read_all_values_from_file(path):  # type: ignore[no-untyped-call]
            metric, _, labels, documentation = json.loads(key)
            yield metric, documentation, labels, len(key.encode()) + ENTRY_BYTES


def forget_gauges(folder: Path) -> None:
    """Forget the gauges of ended processes. Their files keep their space."""
    with _locked(folder):
        for file in folder.glob("gauge_live*.db"):
            if not _lives(file.stem.split("_")[2]):
                _forget(file)


def _forget(file: Path) -> None:
    # For the library a file that begins with a zero is new. Nothing else is written: a scrape that has read
    # the old number of used bytes still finds these bytes.
    with file.open("r+b") as opened:
        opened.write(bytes(4))


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _counters(folder: Path, sizes: Mapping[str, int]) -> list[str]:
    """Return the processes with such files: workers', perhaps outgrown, or smaller ones."""
    least = WORKER_BYTES["counter"]
    return [
        file.stem.partition("_")[2]
        for file in sorted(folder.glob("counter_*.db"))
        if (file.stat().st_size >= least) == (sizes["counter"] >= least)
    ]


def _lives(process: str) -> bool:
    return Path("/proc", process).exists()


def _allocate(path: Path, size: int) -> None:
    # Readers fail on an empty file, so it gets its name when it has its size.
    staged = path if path.exists() else path.with_suffix(".new")
    try:
        with staged.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        staged.replace(path)
    finally:
        path.with_suffix(".new").unlink(missing_ok=True)


#: Held while a number changes.
LOCK = threading.Lock()
#: All numbers of this process, and its files by kind of series.
_numbers: list[Number] = []
_files: dict[str, MmapedDict] = {}


class Number:
    """A number of a series, in the process's file: the value class of prometheus_client.

    The library's own takes ten times as long for a count: it asks for the process's id, looks up its place in
    the file, and calls five functions. Its parameters and methods are these.
    """

    def __init__(self, kind: str, *key: Any, multiprocess_mode: str = "", **_: object) -> None:
        self._kind = f"{kind}_{multiprocess_mode}" if kind == "gauge" else kind
        self._key = mmap_key(*key)
        #: The number and its time; after a fork this object, which opens the new process's file when used.
        self.cell: Any = self
        with LOCK:
            self._open()
            _numbers.append(self)

    def _open(self) -> Any:
        if folder := os.environ.get(VARIABLE):
            if self._kind not in _files:
                path = Path(folder, f"{self._kind}_{os.getpid()}.db")
                _files[self._kind] = MmapedDict(str(path))  # type: ignore[no-untyped-call]
            file = _files[self._kind]
            file.read_value(self._key)  # type: ignore[no-untyped-call]  # takes the place
            place = file._positions[self._key]
            # A file that grows is mapped again, and this is still the same memory.
            self.cell = memoryview(file._m)[place : place + 16].cast("d")
        else:
            self.cell = [0.0, 0.0]
        return self.cell

    def __getitem__(self, index: int) -> float:
        return float(self._open()[index])

    def __setitem__(self, index: int, value: float) -> None:
        self._open()[index] = value

    def inc(self, amount: float = 1.0) -> None:
        with LOCK:
            self.cell[0] += amount

    def set(self, value: float, timestamp: float | None = None) -> None:
        with LOCK:
            self.cell[0], self.cell[1] = value, timestamp or 0.0

    def get(self) -> float:
        return float(self.cell[0])

    def get_exemplar(self) -> None:
        """Return nothing, as the library does for several processes."""


def _after_fork() -> None:
    _files.clear()
    for number in _numbers:
        number.cell = number


os.register_at_fork(after_in_child=_after_fork)
