"""Space for the files of prometheus_client's multi-process mode: no full memory or disk ends a process.

The library maps files that grow with holes. A count that falls into a hole for which there is no room kills
the process (SIGBUS). So the workers' space is reserved at the start, and a process that begins takes over the
files of one that has ended, with its counts.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

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
#: Bytes of another process's files. It has no histograms.
PROCESS_BYTES = {"counter": 2**17, "gauge_livesum": 2**16}


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
            take_over(Path(folder), PROCESS_BYTES)
        except OSError as error:
            log.warning("/metrics is without the counts of process %d (%s)", os.getpid(), error)
            del os.environ[VARIABLE]


def take_over(folder: Path, sizes: Mapping[str, int]) -> None:
    """Give this process the files of one that has ended, else new ones. Raises :class:`OSError`."""
    forget_gauges(folder)
    with _locked(folder):
        free = (process for process in _counters(folder, sizes) if not _lives(process))
        ended = next(free, None)
        for kind, size in sizes.items():
            path, old = folder / f"{kind}_{os.getpid()}.db", folder / f"{kind}_{ended}.db"
            if old.exists():
                old.rename(path)
            else:
                _allocate(path, size)


def forget_gauges(folder: Path) -> None:
    """Forget the gauges of ended processes. Their files keep their space: for the library zeros are new."""
    with _locked(folder):
        for file in folder.glob("gauge_live*.db"):
            if not _lives(file.stem.split("_")[2]):
                with file.open("r+b") as opened:
                    opened.write(bytes(file.stat().st_size))


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _counters(folder: Path, sizes: Mapping[str, int]) -> list[str]:
    """Return the processes whose files have these sizes."""
    files = sorted(folder.glob("counter_*.db"))
    return [file.stem.partition("_")[2] for file in files if file.stat().st_size == sizes["counter"]]


def _lives(process: str) -> bool:
    return Path("/proc", process).exists()


def _allocate(path: Path, size: int) -> None:
    # Readers fail on an empty file, so it gets its name when it has its size.
    staged = path.with_suffix(".new")
    try:
        with staged.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
