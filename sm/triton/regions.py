"""One shared-memory file that this process and Triton map, and its lease to one request."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_BYTES = 2**16


@dataclass(eq=False)
class Region:
    """``memory`` is the mapped file ``path``; Triton knows the region by its file name."""

    path: Path
    size: int
    memory: mmap.mmap
    #: The number of the Triton start that it is registered with; 0 for none.
    known_to: int = 0
    #: The last message to Triton that was built for it, after the key of its kind.
    message: tuple[object, Any] = (None, None)

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, path: Path, size: int) -> Region:
        """Create the file and map it. Raises ``OSError`` if the folder is full: the space is reserved now, as
        running out of it later would be a SIGBUS here or in Triton.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            return cls(path, size, mmap.mmap(descriptor, size))
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def unlink(self) -> None:
        """Remove the file. Processes that have it mapped, Triton included, keep the memory."""
        self.path.unlink(missing_ok=True)


class Lease:
    """The use of a region by one request. ``memory`` is uint8, as long as the region.

    Every array made from ``memory`` keeps the lease alive. When the last one is gone, ``give_back`` is called
    with the region, on any thread and within any code: it must not lock.
    """

    def __init__(self, region: Region, give_back: Callable[[Region], object]) -> None:
        self.region = region
        self.memory: NDArray[np.uint8] = np.frombuffer(region.memory, np.uint8)
        # NumPy makes the array that owns the buffer the base of each view, and never a view in between.
        self._end = weakref.finalize(self.memory, give_back, region)
        self._end.atexit = False

    def take(self) -> Region:
        """Cancel the return of the region."""
        self._end.detach()
        return self.region


def round_up(size: int) -> int:
    """Round up to the next of eight steps per power of two, so that requests of similar sizes share
    regions.
    """
    step = max(MIN_BYTES, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
