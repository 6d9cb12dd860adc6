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
from sm.router.admission import Admission, Loan

#: Batches for each thread that may be submitted before the oldest has its results.
MAX_BATCHES_PER_THREAD = 2
#: Items of a batch. Quick items share a batch, because submitting one may cost more than running it.
MAX_BATCH = 16
#: After a batch that took less, the next one is twice as large; after a slower one, items run one by one.
QUICK_BATCH_S = 0.002
#: Late items that are skipped between two checks of the caller.
CHECK_INTERVAL = 2**10

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Batches(Generic[Item, Result]):
    """The batches of one request that have not begun, and the number of threads that run them.

    The first thread uses the request's own slot; each other thread needs a borrowed one.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._ready: deque[tuple[list[Item], Future[Result]]] = deque()
        self._threads, self._own_place_in_use = 0, False

    def put(self, batch: list[Item]) -> Future[Result]:
        future: Future[Result] = Future()
        with self._lock:
            self._ready.append((batch, future))
        return future

    def add_thread(self, admission: Admission) -> tuple[Loan | None] | None:
        """Count another thread and return its loan; None if it is not needed or has no slot.

        The loan of the thread that uses the request's own slot is None.
        """
        with self._lock:
            if self._threads >= min(self._max_threads, self._threads + len(self._ready)):
                return None
            loan = None
            if self._own_place_in_use and (loan := admission.borrow()) is None:
                return None
            self._own_place_in_use = True
            self._threads += 1
            return (loan,)

    def take(self, loan: Loan | None) -> tuple[list[Item], Future[Result]] | None:
        """Take the next batch. None ends the thread: there is none, or another request needs its slot."""
        with self._lock:
            if self._ready and not (loan and loan.is_wanted_back()):
                return self._ready.popleft()
            self._threads -= 1
            if loan is None:
                self._own_place_in_use = False
            else:
                loan.end()
            return None

    def clear(self) -> None:
        with self._lock:
            self._ready.clear()


class OrderedRunner:
    """Runs items on ``executor``, with at most ``threads`` of its threads for each request.

    If the request has a slot, each thread but the first borrows one of the model, and gives it back when
    another request waits for it. So a long list does not block others.
    """

    def __init__(self, executor: Executor, threads: int) -> None:
        self._executor, self._threads, self._max_waiting = executor, threads, MAX_BATCHES_PER_THREAD * threads

    def run(
        self,
        items: Iterable[Item],
        work: Callable[[Item], Result],
        when_late: Callable[[], Result],
        slot: Admission | None = None,
    ) -> Iterator[Result]:
        """Yield the results of ``work`` in the order of ``items``.

        Each item runs in a copy of the calling thread's context. After the request's deadline no item begins,
        and each result is that of ``when_late``. No item begins after the iterator is closed.

        Raises:
            CallerGone: The caller disconnected.
        """
        source, context = iter(items), contextvars.copy_context()
        limit, stopped = deadline.current(), threading.Event()
        admission = slot or Admission(None)
        batches: _Batches[Item, tuple[list[Result], float]] = _Batches(self._threads)

        def run_batch(batch: list[Item]) -> tuple[list[Result], float]:
            started, results = time.perf_counter(), []
            for item in batch:
                if stopped.is_set():
                    break
                if limit is not None and not limit.remaining():
                    results.append(when_late())
                else:
                    results.append(context.copy().run(work, item))
            return results, time.perf_counter() - started

        def run_batches(loan: Loan | None) -> None:
            while batch_and_future := batches.take(loan):
                batch, future = batch_and_future
                try:
                    future.set_result(run_batch(batch))
                except BaseException as error:  # SystemExit too: a client may call sys.exit.
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
                while thread := batches.add_thread(admission):
                    self._executor.submit(run_batches, *thread)
                results, seconds = waiting.popleft().result()
                size = min(2 * size, MAX_BATCH) if seconds < QUICK_BATCH_S else 1
                if limit is not None:
                    limit.check_caller()
                yield from results
            for number, _ in enumerate(source):
                # The caller of many late items may leave too.
                if limit is not None and number % CHECK_INTERVAL == 0:
                    limit.check_caller()
                yield when_late()
        finally:
            stopped.set()
            batches.clear()
