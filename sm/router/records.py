"""Requests of several records, as a list or as JSON lines: run a few at a time, and answer in order."""

from __future__ import annotations

import contextvars
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from itertools import chain, islice
from typing import Generic, TypeVar

from sm.client.payloads import Payload
from sm.errors import BadInput, DeadlinePassed, TooLarge, TriremeError
from sm.http.media_types import negotiate
from sm.http.messages import CSV, JSON, JSON_LINES, Answer
from sm.invocation import PASSED, Invocation, span
from sm.metrics import stage
from sm.router.admission import Admission
from sm.router.answers import EncodedRecord, encode_failure, join_records
from sm.router.classify import DispatchRequest, LinesRequest, Message
from sm.router.dispatch import note_crash, raise_crash, run_record, to_error, validate_payload

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
EncodedResult = TypeVar("EncodedResult")


class _Batches(Generic[Item, Result]):
    """The batches of one request that have not begun, and the number of threads that run them.

    The first thread uses the request's own slot; each other thread needs a borrowed one.
    """

    def __init__(self, max_threads: int, admission: Admission) -> None:
        self._max_threads, self._admission = max_threads, admission
        self._lock = threading.Lock()
        self._ready: deque[tuple[list[Item], Future[Result]]] = deque()
        self._threads, self._own_place_in_use = 0, False

    def put(self, batch: list[Item]) -> Future[Result]:
        future: Future[Result] = Future()
        with self._lock:
            self._ready.append((batch, future))
        return future

    def add_thread(self) -> bool | None:
        """Count another thread; return True if its slot is borrowed, None if there is no thread to add."""
        with self._lock:
            if self._threads >= self._max_threads or not self._ready:
                return None
            is_borrowed = self._own_place_in_use
            if is_borrowed and not self._admission.borrow():
                return None
            self._own_place_in_use = True
            self._threads += 1
            return is_borrowed

    def take(self, is_borrowed: bool) -> tuple[list[Item], Future[Result]] | None:
        """Take the next batch. None ends the thread: there is none, or another request needs its slot."""
        with self._lock:
            if self._ready and not (is_borrowed and self._admission.is_wanted_back()):
                return self._ready.popleft()
            self._threads -= 1
            if is_borrowed:
                self._admission.give_back()
            else:
                self._own_place_in_use = False
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
        invocation: Invocation,
        slot: Admission | None = None,
    ) -> Iterator[Result]:
        """Yield the results of ``work`` in the order of ``items``.

        Each item runs in a copy of the calling thread's context. After the request's deadline no item begins,
        and each result is that of ``when_late``. No item begins after the iterator is closed.

        Raises:
            CallerGone: The caller disconnected.
        """
        source, context = iter(items), contextvars.copy_context()
        stopped = threading.Event()
        batches: _Batches[Item, tuple[list[Result], float]] = _Batches(self._threads, slot or Admission(None))

        def run_batch(batch: list[Item]) -> tuple[list[Result], float]:
            started, results = time.perf_counter(), []
            for item in batch:
                if stopped.is_set():
                    break
                if not invocation.remaining():
                    results.append(when_late())
                else:
                    results.append(context.copy().run(work, item))
            return results, time.perf_counter() - started

        def run_batches(is_borrowed: bool) -> None:
            while batch_and_future := batches.take(is_borrowed):
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
                    invocation.remaining()
                    and len(waiting) < self._max_waiting
                    and (batch := list(islice(source, size)))
                ):
                    waiting.append(batches.put(batch))
                if not waiting:
                    break
                while (is_borrowed := batches.add_thread()) is not None:
                    self._executor.submit(run_batches, is_borrowed)
                results, seconds = waiting.popleft().result()
                size = min(2 * size, MAX_BATCH) if seconds < QUICK_BATCH_S else 1
                invocation.check_caller()
                yield from results
            for number, _ in enumerate(source):
                # The caller of many late items may leave too.
                if number % CHECK_INTERVAL == 0:
                    invocation.check_caller()
                yield when_late()
        finally:
            stopped.set()
            batches.clear()


def run_records(
    request: DispatchRequest,
    invocation: Invocation,
    encode: Callable[[object], EncodedResult],
    fail: Callable[[TriremeError], EncodedResult],
    runner: OrderedRunner,
    slot: Admission | None = None,
) -> Iterator[EncodedResult]:
    """Yield the encoded result of each record, in order.

    Args:
        request: The request.
        invocation: Its scope.
        encode: Runs on ``runner`` as soon as a record has its result: the encoded form is often smaller,
            and a hundred thousand results would not fit into memory.
        fail: Returns what stands for a record that failed; raises if none may.
        runner: Runs several records at a time, so that Triton's dynamic batching has something to batch.
        slot: That of the request.
    """
    numbers = range(len(request.records))

    def fail_late() -> EncodedResult:
        return fail(DeadlinePassed(PASSED))

    if request.client.batches is not None:
        size = request.client.batches.max_batch
        groups = [numbers[start : start + size] for start in numbers[::size]]

        def run_group(group: Sequence[int]) -> list[EncodedResult]:
            return run_together(request, invocation, group, encode, fail)

        results: Iterator[list[EncodedResult]] = runner.run(groups, run_group, list, invocation, slot)
        return chain.from_iterable(
            group_results or [fail_late() for _ in group]
            for group, group_results in zip(groups, results, strict=True)
        )

    def run_one(number: int) -> EncodedResult:
        path = request.place(number)
        with span("record", {"trireme.record": path}) as record:
            try:
                return encode(run_record(request, invocation, number, path))
            except TriremeError as error:
                record.fail(error)
                return fail(error)

    return runner.run(numbers, run_one, fail_late, invocation, slot)


def run_together(
    request: DispatchRequest,
    invocation: Invocation,
    numbers: Sequence[int],
    encode: Callable[[object], EncodedResult],
    fail: Callable[[TriremeError], EncodedResult],
) -> list[EncodedResult]:
    """Run records of a list through a client with batches; see :func:`run_records`."""
    client = request.client
    assert client.batches is not None
    results: dict[int, EncodedResult] = {}
    payloads: dict[int, Payload] = {}

    def fail_record(number: int, error: BaseException) -> None:
        note_crash(request, invocation, number, error)
        failure = to_error(error, request, request.place(number), payloads.get(number))
        spans[number].fail(failure)
        results[number] = fail(failure)

    with ExitStack() as stack:
        spans = {
            number: stack.enter_context(
                span("record", {"trireme.record": request.place(number)}, nests=False)
            )
            for number in numbers
        }
        for number in numbers:
            try:
                raise_crash(request, invocation, number)
            except TriremeError as crash:  # the crash of an earlier run is not counted again
                results[number] = fail(crash)
                continue
            try:
                with stage(client.name, "decode"):
                    record = request.records[number]
                    payloads[number] = validate_payload(client, request, record, request.place(number))
            except BaseException as error:
                fail_record(number, error)
        try:
            answers = client.batches.answer([*payloads.values()])
            invocation.check()
        except TriremeError as error:
            answers = [error] * len(payloads)
        for number, answer in zip(payloads, answers, strict=True):
            if isinstance(answer, BaseException):
                fail_record(number, answer)
                continue
            try:
                results[number] = encode(answer)
            except TriremeError as error:
                fail_record(number, error)
    return [results[number] for number in numbers]


#: The first byte of a line that is not blank.
NOT_BLANK = re.compile(rb"\S")
#: Lines that are counted between two checks of the deadline.
LINES_PER_CHECK = 2**14


def answer_lines(
    request: LinesRequest,
    answer_line: Callable[[Message], Answer],
    runner: OrderedRunner,
    invocation: Invocation,
    slot: Admission | None = None,
) -> Answer:
    """Answer each line, in order and several at a time; a line that failed gets ``{"error", "code"}``.

    Args:
        request: The lines.
        answer_line: Answers one.
        runner: Runs the lines. It must not have the executor of the records: lines that wait for their
            records could take all of its threads.
        invocation: The request's scope.
        slot: That of the request.

    Raises:
        TooLarge: The body has too many lines.
        TriremeError: The first failure, if no line succeeded.
    """
    check_count(request, invocation)
    deadline_failure = encode_failure(DeadlinePassed(PASSED))

    def answer(line: Message) -> EncodedRecord:
        with span("record") as record:
            try:
                return EncodedRecord(answer_line(line).read())
            except TriremeError as error:
                record.fail(error)
                return encode_failure(error)

    kind = negotiate(request.message.headers.get("accept", ""), (JSON_LINES, JSON, CSV))
    line_accept = CSV if kind == CSV else JSON
    lines = messages(request.message, line_accept)
    records = runner.run(lines, answer, lambda: deadline_failure, invocation, slot)
    if kind == JSON:
        body = join_records(records, invocation, b",\n", b"[", b"]")
    else:
        body = join_records(records, invocation, b"\n", has_errors=kind != CSV)
    if body in (b"", b"[]"):
        raise BadInput("the body has no line")
    return Answer(body, kind)


def check_count(request: LinesRequest, invocation: Invocation) -> None:
    """Raise :class:`TooLarge` if the body has more lines than the request may have records."""
    limit, body = request.limit, request.message.body
    # Counting line breaks is fast, and usually enough: only blank lines make it too high.
    if limit is None or body.count(b"\n") < limit.max_records:
        return
    for number, _ in enumerate(split(body), 1):
        if number > limit.max_records:
            raise TooLarge(
                f"the body has more than {limit.max_records:,} lines, the most that are accepted",
                max_records=limit.max_records,
            )
        if number % LINES_PER_CHECK == 0:
            invocation.check()


def split(body: bytes) -> Iterator[bytes]:
    """Yield each line that is not blank, one by one: a list of a million lines would take much memory."""
    end = 0
    # Blank lines are skipped in one search, because a loop over 25 MB of them takes seconds.
    while first := NOT_BLANK.search(body, end):
        start = first.start()
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        yield body[start:end].rstrip()


def messages(message: Message, accept: str = JSON) -> Iterator[Message]:
    """Yield each line as a message that accepts a type."""
    headers = {**message.headers, "content-type": JSON, "accept": accept}
    # Not with _replace: for short lines that would be a tenth of all the work.
    shared_fields = (headers, message.query, message.request_id, message.model)
    for line in split(message.body):
        yield Message(line, *shared_fields)
