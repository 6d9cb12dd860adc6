"""Many mixed requests are answered right, and leak nothing."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from tests.e2e.faults import FULL, SEED
from tests.support.boxes import RunningBox, command_line, memory_field, wait_until
from tests.support.faults.attack import CALLERS, DEADLINE_S, ECHO, HANG_MARGIN_S, all_processes
from tests.support.faults.callers import Callers
from tests.support.faults.inputs import Sample

REQUESTS = 100_000 if FULL else 1000
#: Limits for the growth in the last quarter, all processes together: bytes, descriptors, files in /dev/shm.
MAX_GROWTH = (64 * 2**20, 16, 4)


def measure(box: RunningBox) -> tuple[int, int, int] | None:
    """Return the box's memory (shared pages counted once), descriptors and files in /dev/shm; None: a process ended."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        # Triton does not reap a model's process that was killed: it has neither a command line nor memory.
        pids = [pid for pid in all_processes(box) if command_line(pid)]
        descriptors = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
        return sum(memory_field(pid, "Pss:") for pid in pids), descriptors, len(box.shared_memory_files())
    return None


def test_mixed_requests_are_right_and_memory_and_descriptors_level_off(
    box: RunningBox, samples: list[Sample]
) -> None:
    # Four requests for the quickest model for each for another.
    mixed = [*samples, *[sample for sample in samples if sample.model == ECHO] * 3]
    load = Callers(box.port, mixed, CALLERS, DEADLINE_S + HANG_MARGIN_S, seed=SEED, limit=REQUESTS).start()
    while load.running and len(load.replies) < 0.75 * REQUESTS:
        time.sleep(0.2)
    late = wait_until(lambda: measure(box))
    load.join()
    growth = [now - before for now, before in zip(wait_until(lambda: measure(box)), late, strict=True)]
    assert load.outcomes() == {"200": REQUESTS}, load.details
    assert all(grown <= limit for grown, limit in zip(growth, MAX_GROWTH, strict=True)), growth
