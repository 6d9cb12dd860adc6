"""Run the items of one request on an executor, a few at a time, and yield their results in order."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from itertools import islice
from typing import TypeVar

from sm import deadline

#: Batches that are submitted for each thread before the oldest of them is finished.
MAX_AHEAD = 2
#: Items of a batch where items are quick: submitting one costs more than refusing a bad record.
MAX_BATCH = 16
#: Seconds. A batch that took less is followed by larger ones; after a slower one items run one by one.
QUICK_S = 0.002

Item = TypeVar("Item")
Result = TypeVar("Result")


class OrderedRunner:
    """Work on ``executor``, which has ``threads`` of them."""

    def __init__(self, executor: Executor, threads: int) -> None:
        self._executor, self._max_waiting = executor, MAX_AHEAD * threads

    def run(
        self, items: Iterable[Item], work: Callable[[Item], Result], when_late: Callable[[], Result]
    ) -> Iterator[Result]:
        """The results of ``work`` in the order of ``items``, each item in a copy of the caller's context.

        No item is begun after the request's deadline: its result is that of ``when_late``.
        :class:`~sm.errors.CallerGone` where the caller hangs up. Nothing more is begun once the iterator is
        closed.
        """
        source, context = iter(items), contextvars.copy_context()
        limit, stopped = deadline.current(), threading.Event()

        def run_batch(batch: list[Item]) -> tuple[list[Result], float]:
            began, results = time.perf_counter(), []
            for item in batch:
                if stopped.is_set():
                    break
                if limit is not None and not limit.remaining():
                    results.append(when_late())
                else:
                    results.append(context.copy().run(work, item))
            return results, time.perf_counter() - began

        waiting: deque[Future[tuple[list[Result], float]]] = deque()
        size = 1
        try:
            while True:
                while (
                    (limit is None or limit.remaining())
                    and len(waiting) < self._max_waiting
                    and (batch := list(islice(source, size)))
                ):
                    waiting.append(self._executor.submit(run_batch, batch))
                if not waiting:
                    break
                results, seconds = waiting.popleft().result()
                size = min(2 * size, MAX_BATCH) if seconds < QUICK_S else 1
                if limit is not None:
                    limit.check_caller()
                yield from results
            for _ in source:
                yield when_late()
        finally:
            stopped.set()
            for future in waiting:
                future.cancel()
