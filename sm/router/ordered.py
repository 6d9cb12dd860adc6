"""Run the items of one request on an executor, a few at a time, and yield their results in order."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from itertools import islice
from typing import Generic, TypeVar

from sm import deadline
from sm.router.admission import Admission, Loan, current

#: Batches submitted for each thread before the oldest is finished.
MAX_AHEAD = 2
#: Items of a batch if items are quick: submitting one costs more than refusing a bad record.
MAX_BATCH = 16
#: Seconds. Faster batches are followed by larger ones; after a slower one, items run one by one.
QUICK_S = 0.002

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Batches(Generic[Item, Result]):
    """Batches of one request that have not begun, and the threads that work on them.

    One thread uses the request's own place; each further one needs a borrowed place.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._ready: deque[tuple[list[Item], Future[Result]]] = deque()
        self._threads, self._own_at_work = 0, False

    def put(self, batch: list[Item]) -> Future[Result]:
        future: Future[Result] = Future()
        with self._lock:
            self._ready.append((batch, future))
        return future

    def join(self, admitted: Admission) -> tuple[Loan | None] | None:
        """Count another thread, with its loan; None if it is not needed, or if there is no place for it."""
        with self._lock:
            if self._threads >= min(self._max_threads, self._threads + len(self._ready)):
                return None
            loan = None
            if self._own_at_work and (loan := admitted.borrow()) is None:
                return None
            self._own_at_work = True
            self._threads += 1
            return (loan,)

    def take(self, loan: Loan | None) -> tuple[list[Item], Future[Result]] | None:
        """Take a batch. None ends the thread: nothing is ready, or another request needs its place."""
        with self._lock:
            if self._ready and not (loan and loan.is_wanted_back()):
                return self._ready.popleft()
            self._threads -= 1
            if loan is None:
                self._own_at_work = False
            else:
                loan.end()
            return None

    def clear(self) -> None:
        with self._lock:
            self._ready.clear()


class OrderedRunner:
    """Work on ``executor``, on at most ``threads`` of its threads for each request.

    Where the request has an :class:`~sm.router.admission.Admission`, a list is as much work as it takes:
    each thread but the first borrows a place of its model, and gives it back when others wait for it.
    """

    def __init__(self, executor: Executor, threads: int) -> None:
        self._executor, self._threads, self._max_waiting = executor, threads, MAX_AHEAD * threads

    def run(
        self, items: Iterable[Item], work: Callable[[Item], Result], when_late: Callable[[], Result]
    ) -> Iterator[Result]:
        """Yield the results of ``work`` in the order of ``items``, each item in a copy of the caller's
        context.

        After the request's deadline no item begins, and its result is that of ``when_late``. Raises
        :class:`~sm.errors.CallerGone` if the caller disconnects. Nothing begins after the iterator is closed.
        """
        source, context = iter(items), contextvars.copy_context()
        limit, stopped = deadline.current(), threading.Event()
        admitted = current() or Admission(None)
        batches: _Batches[Item, tuple[list[Result], float]] = _Batches(self._threads)

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

        def run_batches(loan: Loan | None) -> None:
            while batch_and_future := batches.take(loan):
                batch, future = batch_and_future
                try:
                    future.set_result(run_batch(batch))
                except BaseException as error:  # a client may say sys.exit: the request's thread is told
                    future.set_exception(error)

        waiting: deque[Future[tuple[list[Result], float]]] = deque()
        size = 1
        try:
            while True:
                while (
                    (limit is None or limit.remaining())
                    and len(waiting) < self._max_waiting
                    and (batch := list(islice(source, size)))
                ):
                    waiting.append(batches.put(batch))
                if not waiting:
                    break
                while joined := batches.join(admitted):
                    self._executor.submit(run_batches, *joined)
                results, seconds = waiting.popleft().result()
                size = min(2 * size, MAX_BATCH) if seconds < QUICK_S else 1
                if limit is not None:
                    limit.check_caller()
                yield from results
            for _ in source:
                yield when_late()
        finally:
            stopped.set()
            batches.clear()
