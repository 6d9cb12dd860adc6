"""The series that the workers count, from their files: one source for all that reads them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import Metric, multiprocess

#: How often files that change meanwhile are read.
MAX_READS = 9


def read_families(folder: Path) -> Iterable[Metric]:
    """Read the series of all workers, summed, from their files in ``folder``.

    A file is empty until its process has given it a size, and the collector would fail at it. One that
    another process takes over meanwhile could be missing, twice or half written; then all are read again.
    """
    families: Iterable[Metric] = ()
    for left in reversed(range(MAX_READS)):
        try:
            files = _files(folder)
            families = multiprocess.MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
            if files == _files(folder):
                break
        except (FileNotFoundError, ValueError, RuntimeError, struct.error):
            if not left:
                raise
    return families


def _files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*.db") if path.stat().st_size)
