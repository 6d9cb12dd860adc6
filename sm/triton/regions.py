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

#: The smallest region, and the smallest step between two sizes.
MIN_REGION_BYTES = 2**16


@dataclass(eq=False)
class Region:
    """A mapped file. Its name is the region's name in Triton."""

    path: Path
    size: int
    memory: mmap.mmap
    #: The start of Triton with which it is registered, as the pool counts them; 0 for none.
    registered_with: int = 0
    #: The last request message that was built for it, with the key of the requests that may reuse it.
    message: tuple[object, Any] = (None, None)

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, path: Path, size: int) -> Region:
        """Create the file and map it. Raises ``OSError`` if the folder is full.

        The space is reserved now: without it a later write would be a SIGBUS, here or in Triton.
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
    """The use of a region by one request, for as long as an array refers to its ``memory``, uint8 [size].

    Args:
        region: The region.
        give_back: Called with the region when the last array is gone. That may be in any thread and within
            any code, so it must not take a lock.
    """

    def __init__(self, region: Region, give_back: Callable[[Region], object]) -> None:
        self.region = region
        self.memory: NDArray[np.uint8] = np.frombuffer(region.memory, np.uint8)
        # The base of each view is this array, also if it is a view of a view.
        self._finalizer = weakref.finalize(self.memory, give_back, region)
        self._finalizer.atexit = False

    def take(self) -> Region:
        """Keep the region: ``give_back`` is not called."""
        self._finalizer.detach()
        return self.region


def round_up(size: int) -> int:
    """Round up to one of eight sizes per power of two, so that requests of similar sizes share regions."""
    step = max(MIN_REGION_BYTES, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
