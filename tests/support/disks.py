"""A box with small disks of its own, and how to fill them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.boxes import RunningBox

#: A namespace of its own, in which a small disk is mounted: {size} MiB at {folder}.
SMALL = "unshare -rm sh -c 'mount -t tmpfs -o size={size}m tmpfs {folder} && exec \"$@\"' sh"
PAGE_BYTES = 4096


@contextmanager
def full(box: RunningBox, folder: Path) -> Iterator[None]:
    """Until the end, there is not a byte of room in ``folder`` as the box sees it."""
    file = Path(f"/proc/{box.process.pid}/root{folder}/fill")
    try:
        with file.open("wb", buffering=0) as stream:
            while True:
                stream.write(b"x" * PAGE_BYTES)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    try:
        yield
    finally:
        file.unlink()
