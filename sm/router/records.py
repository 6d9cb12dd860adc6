"""Requests of several records, as a list or as JSON lines: run a few at a time, and answer in order."""

from __future__ import annotations

import contextvars
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack, suppress
from itertools import islice
from typing import TypeVar

import numpy as np

from sm.client.decode_budget import DECODED
from sm.client.payloads import Payload
from sm.errors import BadInput, DeadlinePassed, TooLarge, TriremeError, write_path
from sm.http.media_types import negotiate
from sm.http.messages import CSV, JSON, JSON_LINES, Answer
from sm.invocation import PASSED, Invocation, span
from sm.metrics import stage
from sm.router.answers import EncodedRecord, WrongLimit, encode_failure, join_records
from sm.router.dispatch import (
    note_crash,
    raise_crash,
    read_options,
    run_record,
    to_error,
    validate_payload,
)
from sm.router.request_types import DispatchRequest, LinesRequest, Message

#: Batches of a request that may be submitted, for each thread, before the oldest has its results.
MAX_BATCHES_PER_THREAD = 2
#: The same while others have requests, who wait for what is submitted: one for so many threads, at least two.
THREADS_PER_BATCH = 4
#: Items of a batch. Quick items share a batch, because submitting one may cost more than running it.
MAX_BATCH = 16
#: After a batch that took less, the next one is twice as large; after a slower one, items run one by one.
QUICK_BATCH_S = 0.002
#: Late items that are skipped between two checks of the caller.
CHECK_INTERVAL = 2**10

Item = TypeVar("Item")
Result = TypeVar("Result")
EncodedResult = TypeVar("EncodedResult")


class OrderedMap:
    """Maps items to results, in order, on threads that all requests of a worker share.

    The request's own thread runs the next batch if none of them has begun it. So a list goes on by itself
    while others keep all of them busy, and an item may be a list of its own.

    Args:
        executor: The threads.
        threads: How many it has.
        in_company: Returns True while others have requests.
    """

    def __init__(
        self, executor: Executor, threads: int, in_company: Callable[[], bool] = lambda: False
    ) -> None:
        self._executor, self._threads, self._in_company = executor, threads, in_company

    def _max_waiting(self, max_batch: int) -> int:
        """Return how many batches of a request may be submitted now."""
        if self._in_company():
            # An item that must be alone is a whole batch of the client's.
            return max(2, self._threads // THREADS_PER_BATCH) // (2 if max_batch == 1 else 1)
        return MAX_BATCHES_PER_THREAD * self._threads

    def run(
        self,
        items: Iterable[Item],
        work: Callable[[Item], Result],
        when_late: Callable[[], Result],
        invocation: Invocation,
        max_batch: int = MAX_BATCH,
    ) -> Iterator[Result]:
        """Yield the results of ``work`` in the order of ``items``; at most ``max_batch`` go together.

        Each item runs in a copy of the calling thread's context. After the request's deadline no item begins,
        and each result is that of ``when_late``. No item begins after the iterator is closed.

        Raises:
            CallerGone: The caller disconnected.
        """
        source, context = iter(items), contextvars.copy_context()
        stopped = threading.Event()

        def run_batch(batch: Sequence[Item]) -> tuple[list[Result], float]:
            started, results = time.perf_counter(), []
            for item in batch:
                if stopped.is_set():
                    break
                if not invocation.remaining():
                    results.append(when_late())
                else:
                    results.append(context.copy().run(work, item))
            return results, time.perf_counter() - started

        future: Future[tuple[list[Result], float]] | None
        waiting: deque[tuple[list[Item], Future[tuple[list[Result], float]]]] = deque()
        size = 1
        try:
            while True:
                while (
                    invocation.remaining()
                    and len(waiting) < self._max_waiting(max_batch)
                    and (batch := list(islice(source, size)))
                ):
                    waiting.append((batch, self._executor.submit(run_batch, batch)))
                if not waiting:
                    break
                batch, future = waiting.popleft()
                results, seconds = run_batch(batch) if future.cancel() else future.result()
                size = min(2 * size, max_batch) if seconds < QUICK_BATCH_S else 1
                invocation.check_caller()
                yield from results
            for number, _ in enumerate(source):
                # The caller of many late items may leave too.
                if number % CHECK_INTERVAL == 0:
                    invocation.check_caller()
                yield when_late()
        finally:
            stopped.set()
            for _, future in waiting:
                future.cancel()
            future = None  # its exception has this frame, which would keep the request


def run_records(
    request: DispatchRequest,
    invocation: Invocation,
    encode: Callable[[object], EncodedResult],
    fail: Callable[[TriremeError], EncodedResult],
    threads: OrderedMap,
) -> Iterator[EncodedResult]:
    """Yield the encoded result of each record, in order.

    Args:
        request: The request.
        invocation: Its scope.
        encode: Runs as soon as a record has its result: the encoded form is often smaller,
            and a hundred thousand results would not fit into memory.
        fail: Returns what stands for a record that failed; raises if none may.
        threads: Runs several records at a time, so that Triton's dynamic batching has something to batch.
    """
    numbers = range(len(request.records))
    with suppress(Exception):  # what is wrong, each record says
        read_options(request)  # before they run side by side: they share it

    def fail_late() -> EncodedResult:
        return fail(DeadlinePassed(PASSED))

    if request.client._marks.batches is not None:
        size = request.client._marks.batches.max_batch
        groups = [numbers[start : start + size] for start in numbers[::size]]

        def run_group(group: Sequence[int]) -> list[EncodedResult]:
            return run_together(request, invocation, group, encode, fail)

        results: Iterator[list[EncodedResult]] = threads.run(groups, run_group, list, invocation, 1)
        return (
            result
            for group, group_results in zip(groups, results, strict=True)
            for result in group_results or [fail_late() for _ in group]
        )

    def run_one(number: int) -> EncodedResult:
        path = request.place(number)
        with span("record", {"trireme.record": write_path(path)}) as record:
            try:
                return encode(run_record(request, invocation, number, path))
            except TriremeError as error:
                record.fail(error)
                return fail(error)

    return threads.run(numbers, run_one, fail_late, invocation)


def run_together(
    request: DispatchRequest,
    invocation: Invocation,
    numbers: Sequence[int],
    encode: Callable[[object], EncodedResult],
    fail: Callable[[TriremeError], EncodedResult],
) -> list[EncodedResult]:
    """Run records of a list through a client with batches; see :func:`run_records`."""
    client = request.client
    assert client._marks.batches is not None
    results: dict[int, EncodedResult] = {}
    payloads: dict[int, Payload] = {}

    def fail_record(number: int, error: BaseException) -> None:
        note_crash(request, invocation, number, error)
        failure = to_error(error, request, request.place(number), payloads.get(number))
        spans[number].fail(failure)
        try:
            results[number] = fail(failure)
        finally:
            del error, failure  # their traceback has this frame, which would keep the request

    with ExitStack() as stack:
        spans = {
            number: stack.enter_context(
                span("record", {"trireme.record": write_path(request.place(number))}, nests=False)
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
            answers = client._marks.batches.answer([*payloads.values()], invocation)
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


#: A line that is not blank, from its first character. Blank ones are skipped in one search.
LINE = re.compile(rb"\S[^\n]*")
#: Blanks that are no end of a line.
BLANKS = b" \t\r\f\v"


def answer_lines(
    request: LinesRequest,
    answer_line: Callable[[Message], Answer],
    threads: OrderedMap,
    invocation: Invocation,
) -> Answer:
    """Answer each line, in order and several at a time; a line that failed gets ``{"error", "code"}``.

    Args:
        request: The lines.
        answer_line: Answers one.
        threads: Runs several lines at a time.
        invocation: The request's scope.

    Raises:
        TooLarge: The body has too many lines.
        TriremeError: The first failure, if no line succeeded.
    """
    check_count(request)
    deadline_failure = encode_failure(DeadlinePassed(PASSED))

    def answer(line: Message) -> EncodedRecord:
        with span("record") as record:
            try:
                answered = answer_line(line)
                return EncodedRecord(answered.read(), None, answered.right, answered.wrong)
            except TriremeError as error:
                record.fail(error)
                return encode_failure(error)

    kind = negotiate(request.message.headers.get("accept", ""), (JSON_LINES, JSON, CSV))
    line_accept = CSV if kind == CSV else JSON
    lines = messages(request.message, line_accept)
    records, room = threads.run(lines, answer, lambda: deadline_failure, invocation), DECODED.room()
    most = None if request.limit is None else request.limit.max_records
    limit = WrongLimit.of(most, lambda: count_lines(request.message.body))
    frame = (b",\n", b"[", b"]") if kind == JSON else (b"\n", b"", b"")
    body, *_ = join_records(records, invocation, room, *frame, kind != CSV, limit)
    if body in (b"", b"[]"):
        raise BadInput("the body has no line")
    return Answer(body, kind, on_sent=room.close)


def check_count(request: LinesRequest) -> None:
    """Raise :class:`TooLarge` if the body has more lines than the request may have records."""
    limit, body = request.limit, request.message.body
    # Counting line breaks is fast, and usually enough: only blank lines make it too high.
    if limit is None or body.count(b"\n") < limit.max_records or count_lines(body) <= limit.max_records:
        return
    raise TooLarge(
        f"the body has more than {limit.max_records:,} lines, the most that are accepted: send them "
        "in several requests",
        max_records=limit.max_records,
    )


def count_lines(body: bytes) -> int:
    """Return how many lines are not blank, without a loop over them."""
    is_end = np.frombuffer(body.translate(None, BLANKS) + b"\n", np.uint8) == ord("\n")
    return int(np.count_nonzero(is_end[1:] > is_end[:-1]))


def split(body: bytes) -> Iterator[bytes]:
    """Yield each line that is not blank, one by one: a list of a million lines would take much memory."""
    return (line[0].rstrip() for line in LINE.finditer(body))


def messages(message: Message, accept: str = JSON) -> Iterator[Message]:
    """Yield each line as a message that accepts a type."""
    headers = {**message.headers, "content-type": JSON, "accept": accept}
    # Not with _replace: for short lines that would be a tenth of all the work.
    shared_fields = (headers, message.query, message.request_id, message.model)
    for line in split(message.body):
        yield Message(line, *shared_fields)
