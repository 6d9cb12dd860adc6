"""A worker at rest gives its freed memory back, once each time it comes to rest."""

from __future__ import annotations

import threading
import time

from sm.server import memory_trim


class Process:
    """So many of the processor's seconds at each look: two of the clock for each of ``work``."""

    def __init__(self, *work: float) -> None:
        self.left, self.seconds, self.asked = list(work), 0.0, 0
        self.over = threading.Event()

    def spent(self) -> float:
        # Asked at the beginning, then twice at each look: before and after what it gives back.
        self.asked += 1
        if self.asked % 2 == 0:
            if self.left:
                self.seconds += self.left.pop(0)
            else:
                self.over.set()
        return self.seconds


def given_back(*work: float) -> int:
    process, calls = Process(*work), []
    stop = memory_trim.watch(lambda: calls.append(1), 0.01, process.spent)
    assert process.over.wait(20)
    stop()
    return len(calls)


def test_a_process_that_comes_to_rest_gives_back_once() -> None:
    assert given_back(1, 1, 0, 0, 0) == 1
    assert given_back(0, 0, 1, 0, 0, 1, 0) == 3


def test_a_process_at_work_keeps_what_it_has() -> None:
    process, calls = Process(*[1.0] * 1000), []
    stop = memory_trim.watch(lambda: calls.append(1), 0.001, process.spent)
    time.sleep(0.2)
    stop()
    assert calls == []


def test_giving_back_harms_nothing() -> None:
    memory_trim.trim()
