"""An idle worker returns its freed memory to the kernel, once each time it becomes idle.

tests/integration/box/test_memory.py has the real C library.
"""

from __future__ import annotations

import threading

import pytest

from sm.server import worker


class FakeCpuTime:
    """The processor time of a process that uses the given seconds between one poll and the next."""

    def __init__(self, *work: float) -> None:
        self.remaining_work, self.seconds, self.calls = list(work), 0.0, 0
        self.work_done = threading.Event()

    def read(self) -> float:
        # Read at the beginning, then twice at each poll: before and after the trim.
        self.calls += 1
        if self.calls % 2 == 0:
            if self.remaining_work:
                self.seconds += self.remaining_work.pop(0)
            else:
                self.work_done.set()
        return self.seconds


@pytest.mark.parametrize(
    ("work", "trims"),
    [((1, 1, 0, 0, 0), 1), ((0, 0, 1, 0, 0, 1, 0), 3), ((1,) * 20, 0)],
    ids=["when it becomes idle", "each time", "never while it is busy"],
)
def test_a_worker_that_becomes_idle_returns_its_memory_once(work: tuple[float, ...], trims: int) -> None:
    cpu_time, counted = FakeCpuTime(*work), list[int]()
    # A worker that stays busy is not looked at again when the work has ended.
    stop = worker.watch_memory(lambda: counted.append(cpu_time.calls), 0.001, cpu_time.read)
    assert cpu_time.work_done.wait(20)
    stop()
    assert len([calls for calls in counted if calls <= 2 * len(work)]) == trims
