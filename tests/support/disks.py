"""Give a box small disks of its own, and fill them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.boxes import RunningBox

#: A command prefix that mounts a disk of {size} MiB at {folder}, visible to the command alone.
MOUNT_SMALL_DISK = "unshare -rm sh -c 'mount -t tmpfs -o size={size}m tmpfs {folder} && exec \"$@\"' sh"
PAGE_BYTES = 4096


@contextmanager
def filled_disk(box: RunningBox, folder: Path) -> Iterator[None]:
    """Fill the disk at ``folder`` in the box's mount namespace until the block ends."""
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
