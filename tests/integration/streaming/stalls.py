"""What streams whose callers read nothing cost a box."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from tests.support.boxes import RunningBox, memory_field

#: Seconds that a stream would take whose caller reads nothing: much longer than a test waits.
ENDLESS_S = 300.0
TORRENT: dict[str, float] = {"seconds": ENDLESS_S, "size": 100_000}
SHORT: dict[str, float] = {"seconds": 0.1, "size": 10}
#: What a caller may add to the memory of Triton and the worker, beside the models' own.
MEMORY_BYTES = 300 * 2**20


def box_bytes(box: RunningBox) -> int:
    """Memory of Triton and the workers."""
    return sum(memory_field(pid, "Pss:") for pid in (box.child("triton")["pid"], *box.workers()))


def lost_streams(box: RunningBox) -> int:
    """Return the streams that were ended. The port without TLS has no metrics."""
    return box.log.read_text().count('"code":"stream_stalled"')


@contextmanager
def grows_less_than(limit: int, box: RunningBox) -> Iterator[None]:
    """Check that the memory of Triton and the workers never grows by so much during the block."""
    before, done = box_bytes(box), threading.Event()

    def watch() -> int:
        peak = 0
        while not done.wait(0.2):
            with suppress(OSError):
                peak = max(peak, box_bytes(box))
        return peak

    with ThreadPoolExecutor(1) as pool:
        peak = pool.submit(watch)
        try:
            yield
        finally:
            done.set()
    assert peak.result() - before < limit
