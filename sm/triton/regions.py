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
    """``memory`` is ``path`` mapped; Triton knows it by its file name."""

    path: Path
    size: int
    memory: mmap.mmap
    #: Which of the Tritons seen so far it is registered with; 0 for none.
    known_to: int = 0
    #: The message to Triton that was last made for it, behind what it says.
    message: tuple[object, Any] = (None, None)

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, path: Path, size: int) -> Region:
        """Make the file and map it. ``OSError`` where the folder is full: asked for in advance, since
        running out later would be a SIGBUS in this process or in Triton's."""
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
        """Take the name away. Whoever has it mapped, Triton included, keeps the memory until it lets go."""
        self.path.unlink(missing_ok=True)


class Lease:
    """A region in the hands of one request: ``memory`` is uint8, as long as the region.

    Every array made from ``memory`` keeps it alive. When the last of them is gone, ``give_back`` is called
    with the region, on whatever thread and however deep in whatever code that happens: it must not lock.
    """

    def __init__(self, region: Region, give_back: Callable[[Region], object]) -> None:
        self.region = region
        self.memory: NDArray[np.uint8] = np.frombuffer(region.memory, np.uint8)
        # NumPy makes the array that owns the buffer, and never a view between, the base of each view.
        self._end = weakref.finalize(self.memory, give_back, region)
        self._end.atexit = False

    def take(self) -> Region:
        """Keep the region from being given back at all."""
        self._end.detach()
        return self.region


def round_up(size: int) -> int:
    """Up to the next of eight steps per power of two, so that requests of about a size share regions."""
    step = max(MIN_BYTES, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
