"""Repeat work in several processes at once, each with several threads, and time it."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np

from bench.driver import Load

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
    times, wrong, lasted, processor = zip(*parts, strict=True)
    load = Load.of(np.concatenate(times).tolist(), sum(wrong), 0, max(lasted), sum(processor))
    print(json.dumps(asdict(load)))


def _process(maker: Maker, threads: int, seconds: float, start: Barrier, results: Any) -> None:
    steps = maker(threads)
    times: list[list[float]] = [[] for _ in steps]
    wrong = [0] * len(steps)
    start.wait()
    began, spent = time.perf_counter(), time.process_time()

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
    results.put((np.concatenate(times), sum(wrong), time.perf_counter() - began, time.process_time() - spent))
