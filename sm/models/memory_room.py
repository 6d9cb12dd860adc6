"""Check whether the container and the GPUs have room for another model.

A load that cannot fit is refused before it starts. A load during which the kernel killed a process of the box
for memory is refused too, whichever process that was: the platform makes room and loads again.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator

from sm import hardware
from sm.errors import OutOfMemory
from sm.repository.models import Model

log = logging.getLogger(__name__)
QUERY = ("nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits")
#: Seconds; a faulty driver may hang.
QUERY_TIMEOUT_S = 10


#: Bytes of a Python model's process that has imported NumPy and loaded nothing.
PROCESS_BYTES = 24 * 2**20
#: The memory that stays free for requests: a share of the box's, and at most this many bytes.
RESERVED_SHARE, MAX_RESERVED_BYTES = 1 / 16, 256 * 2**20
#: Seconds that a load waits for others, while none of them ends, before it is refused.
PATIENCE_S = 10.0


class MemoryRoom:
    """The memory of the box, as loads share it."""

    def __init__(
        self,
        free: Callable[[], int] = hardware.free_memory,
        limit: Callable[[], int] = hardware.memory_limit,
        kills: Callable[[], int] = hardware.memory_kills,
    ) -> None:
        self._free, self._limit, self._kills = free, limit, kills
        self._changed = threading.Condition()
        #: Bytes that loads which are under way will take. Some of them are in use already.
        self._pending = 0

    @contextlib.contextmanager
    def reserve(self, name: str, size: int) -> Iterator[None]:
        """Hold ``size`` bytes during a load. Loads wait for each other where memory would become short: a
        model may take more than its files say.

        Raises:
            OutOfMemory: There is no room, or the kernel killed a process meanwhile.
        """
        with self._changed:
            while self._pending and not self._fits(size + self._reserved) and self._changed.wait(PATIENCE_S):
                pass
            if not self._fits(size):
                raise OutOfMemory(
                    f"there is no room for {name[:200]!r}: it takes at least {_megabytes(size)}, and "
                    f"{_megabytes(self._free())} are free, of which {_megabytes(self._reserved)} are kept "
                    "for requests: unload other models"
                )
            self._pending += size
        kills = self._kills()
        try:
            yield
        except Exception as error:
            self._check_kills(name, kills, error)
            raise
        else:
            self._check_kills(name, kills)
        finally:
            with self._changed:
                self._pending -= size
                self._changed.notify_all()

    @property
    def _reserved(self) -> int:
        return min(MAX_RESERVED_BYTES, int(self._limit() * RESERVED_SHARE))

    def _fits(self, size: int) -> bool:
        return not size or size + self._pending <= self._free() - self._reserved

    def _check_kills(self, name: str, before: int, cause: Exception | None = None) -> None:
        if self._kills() > before:
            raise OutOfMemory(
                f"there is no room for {name[:200]!r}: memory ran out while it was loaded, and the kernel "
                "killed a process of the box: unload other models"
            ) from cause


def needed_bytes(models: Iterable[Model], on_cpu: Iterable[str] = ()) -> int:
    """Return the bytes that models take at least: the files of what is served, and their processes."""
    moved, size = set(on_cpu), 0
    for model in models:
        if model.backend == "python":
            size += PROCESS_BYTES * model.instances
        if model.backend != "tensorrt" and (not model.wants_gpu or model.name in moved):
            for number in model.served:
                files = model.version(number).rglob("*")
                size += sum(path.stat().st_size for path in files if path.is_file())
    return size


def _megabytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def check_gpus(limit: float | None) -> None:
    """Raise :class:`OutOfMemory` if more than this fraction of any GPU's memory is in use."""
    if limit is None:
        return
    for index, share in enumerate(memory_shares()):
        if share > limit:
            raise OutOfMemory(
                f"{share:.0%} of the memory of GPU {index} is in use; "
                f"SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT={limit:g} allows no load now"
            )


def memory_shares() -> list[float]:
    """Return the used fraction of each GPU's memory; empty without a driver."""
    try:
        output = subprocess.run(
            QUERY, capture_output=True, text=True, check=True, timeout=QUERY_TIMEOUT_S
        ).stdout
        pairs = [line.split(",") for line in output.splitlines() if line.strip()]
        return [float(used) / float(total) for used, total in pairs]
    except (OSError, subprocess.SubprocessError, ValueError, ZeroDivisionError) as error:
        log.warning("SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT has no effect: nvidia-smi: %s", error)
        return []
