"""Repeat work in several processes at once, each with several threads, and time it.

    python -m bench.together MODEL SECONDS

is the lower bound of this machine: the work of a request without a server, one process per core, from the
picture's or text's bytes to the result. The environment has files and regime, see :func:`bench.work.work`.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np

from bench.contestant import PROCESSES
from bench.driver import Load

#: Rounds of the work before the clock runs.
WARM = 3
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


def main(model: str, seconds: float) -> None:
    # Not for callers of a Triton alone, whose memory is measured.
    from bench.samples import sample
    from bench.work import work

    asked = sample(model)

    def steps(_count: int) -> list[Step]:
        # Within the process: a session does not survive a fork.
        answer = work(model)
        for _ in range(WARM):
            answer(asked.content)
        return [lambda: asked.expected in json.dumps(answer(asked.content)).encode()]

    report(steps, [1] * PROCESSES, seconds)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
