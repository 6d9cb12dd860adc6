"""Check whether the GPUs have room for another model."""

from __future__ import annotations

import logging
import subprocess

from sm.errors import OutOfMemory

log = logging.getLogger(__name__)
QUERY = ("nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits")
#: Seconds; a faulty driver may hang.
QUERY_TIMEOUT_S = 10


def check(limit: float | None) -> None:
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
