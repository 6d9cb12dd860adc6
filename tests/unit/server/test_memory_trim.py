"""An idle worker returns its freed memory to the kernel, once each time it becomes idle."""

from __future__ import annotations

import threading

from sm.server import worker
from tests.support.boxes import wait_until


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


def count_trims(*work: float) -> int:
    cpu_time, trims = FakeCpuTime(*work), []
    stop = worker.watch_memory(lambda: trims.append(1), 0.01, cpu_time.read)
    assert cpu_time.work_done.wait(20)
    stop()
    return len(trims)


def test_a_worker_that_becomes_idle_returns_its_memory_once() -> None:
    assert count_trims(1, 1, 0, 0, 0) == 1
    assert count_trims(0, 0, 1, 0, 0, 1, 0) == 3


def test_a_busy_worker_keeps_its_memory() -> None:
    cpu_time, trims = FakeCpuTime(*[1.0] * 100_000), []
    stop = worker.watch_memory(lambda: trims.append(1), 0.001, cpu_time.read)
    wait_until(lambda: cpu_time.calls > 20)
    stop()
    assert trims == []


def test_trimming_works_with_the_real_c_library() -> None:
    worker.trim()
