"""Repeat work in several processes at once, each with several threads, and time it."""

from __future__ import annotations

import json
import multiprocessing
import resource
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np

#: One round of one thread; returns whether its result was right.
Step = Callable[[], bool]
#: Makes the step of each thread of a process, after the fork, before the clock runs.
Maker = Callable[[int], list[Step]]


def report(maker: Maker, threads: list[int], seconds: float) -> None:
    """Run ``threads[i]`` threads in process i for so long; print the line of :mod:`bench.driver`."""
    context = multiprocessing.get_context("fork")
    results, start = context.SimpleQueue(), context.Barrier(len(threads))
    processes = [
        context.Process(target=_process, args=(maker, count, seconds, start, results)) for count in threads
    ]
    for process in processes:
        process.start()
    parts = [results.get() for _ in processes]
    for process in processes:
        process.join()
    times = np.concatenate([part[0] for part in parts])
    p50, p90, p99 = np.percentile(times, (50, 90, 99)) if len(times) else (0.0, 0.0, 0.0)
    line = {
        "answers": len(times),
        "wrong": sum(part[1] for part in parts),
        "lost": 0,
        "seconds": max(part[2] for part in parts),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": float(times.max(initial=0.0)),
        "processor": sum(part[3] for part in parts),
    }
    print(json.dumps(line))


def _process(maker: Maker, threads: int, seconds: float, start: Barrier, results: Any) -> None:
    steps = maker(threads)
    times: list[list[float]] = [[] for _ in steps]
    wrong = [0] * len(steps)
    start.wait()
    began, spent = time.perf_counter(), _spent()

    def repeat(place: int) -> None:
        now = time.perf_counter()
        while now < began + seconds:
            before = now
            right = steps[place]()
            now = time.perf_counter()
            if right:
                times[place].append(now - before)
            else:
                wrong[place] += 1

    workers = [threading.Thread(target=repeat, args=(place,)) for place in range(len(steps))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    results.put((np.concatenate(times), sum(wrong), time.perf_counter() - began, _spent() - spent))


def _spent() -> float:
    """Return this process's seconds of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
