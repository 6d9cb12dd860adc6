"""Gather the records that wait for a client with batch methods, and answer them together.

The records of one request's list, of lines and of different callers meet here: all that one worker has. While
a batch is under way, further records wait and make up the next one, so a caller without company never waits.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sm import metrics
from sm.client.base import Client
from sm.client.payloads import Payload
from sm.errors import CallerGone, ClientFailed, DeadlinePassed, NotReady, TriremeError
from sm.invocation import Invocation, Suspicion, held_lock, running, span, wait

log = logging.getLogger(__name__)

Answers = TypeVar("Answers")
#: Batches of a client that run at once. The second and later ones begin only if they are full.
AT_ONCE = 4
#: The lengths of a batch's records, padded to the longest. A longer record has a batch of its own.
MAX_BATCH_LENGTH = 2**12
#: Records of at most this length share a batch, a longer one does with those of half its own.
SHORT = 64
#: The stage in which a record waits for its batch.
GATHER = "gather"


class WrongCount(ClientFailed):
    """The client returned more or fewer results than there were records."""


#: Errors that say nothing about a single record: all records of the batch get them.
COMMON = (NotReady, DeadlinePassed, CallerGone, WrongCount)


@dataclass(slots=True, eq=False, repr=False)
class _Record:
    """A record that waits for its batch, and then for its answer."""

    payload: Payload
    invocation: Invocation
    length: int
    #: The context of the caller's thread.
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    since: float = field(default_factory=time.monotonic)
    #: True if nobody waits for the answer any more.
    is_gone: bool = False
    #: The records of its batch.
    size: int = 0
    #: The result or the exception.
    answer: object = None
    answered: threading.Lock = field(default_factory=held_lock)

    def wait(self) -> object:
        """Return the result or the exception; raise if the invocation ends before."""
        try:
            wait(partial(self.answered.acquire, True), self.invocation)
        except BaseException:
            self.is_gone = True
            raise
        return self.answer


class Batches:
    """Answers the records of one client, for all threads of a worker.

    Args:
        client: Its ``max_batch`` and ``max_wait_ms`` say how many records a batch has at most, and how long
            the first waits for others.
    """

    def __init__(self, client: Client) -> None:
        self._client, self.max_batch = client, client.max_batch
        self._max_wait = client.max_wait_ms / 1e3
        self._threads = ThreadPoolExecutor(AT_ONCE, f"{client.name}-batches")
        self._changed = threading.Condition()
        #: The waiting records by request: the next batch takes one of each in turn, so that a long list does
        #: not keep other callers waiting.
        self._waiting: dict[Invocation, deque[_Record]] = {}
        self._count = self._running = 0
        #: The longest record of each batch under way.
        self._under_way: list[int] = []

    def answer(self, payloads: Sequence[Payload], invocation: Invocation | None) -> list[object]:
        """Return each record's result, or the exception of the client if it failed.

        A record that names a version runs alone, as its model may not be that of the others.

        Raises:
            DeadlinePassed, CallerGone: The invocation ended during the wait.
        """
        if invocation is None or not payloads or any(payload.version for payload in payloads):
            return [self._answer_alone(payload) for payload in payloads]
        with self._changed:
            if len(payloads) == 1 and not self._running and not self._max_wait:
                self._running = 1
                self._under_way.append(payloads[0]._length)
                records = []
            else:
                records = self._put(payloads, invocation)
        if not records:
            try:
                return [self._answer_alone(payloads[0])]
            finally:
                self._end_turn(payloads[0]._length)
        with span("batch") as batch:
            answers = [record.wait() for record in records]
            batch.describe({"trireme.batch.size": max(record.size for record in records)})
        return answers

    def _put(self, payloads: Sequence[Payload], invocation: Invocation) -> list[_Record]:
        """Queue records; the caller holds the lock."""
        records = [_Record(payload, invocation, payload._length) for payload in payloads]
        self._waiting.setdefault(invocation, deque()).extend(records)
        self._count += len(records)
        if self._may_begin(self._running, records):
            self._running += 1
            self._threads.submit(self._run_batches)
        elif self._count >= self.max_batch:
            self._changed.notify()
        return records

    def _may_begin(self, running: int, *queues: Sequence[_Record]) -> bool:
        """True if a batch may begin beside those that run: a full one, or one of an urgent record."""
        is_full = self._count >= self.max_batch
        return not running or (running < AT_ONCE and (is_full or any(map(self._is_urgent, queues))))

    def _is_urgent(self, queue: Sequence[_Record]) -> bool:
        """True if a short record is next beside long ones, which may take a hundred times as long."""
        return not _fit(queue[0].length, min(self._under_way, default=0))

    def _end_turn(self, length: int) -> None:
        """Let a thread answer what waits, after a record of this length that ran alone."""
        with self._changed:
            self._under_way.remove(length)
            if self._waiting:
                self._threads.submit(self._run_batches)
            else:
                self._running -= 1

    def _run_batches(self) -> None:
        """Answer batches until no record waits."""
        while records := self._take():
            started, longest = time.monotonic(), max(record.length for record in records)
            for record in records:
                record.size = len(records)
                stages, seconds = record.invocation.stages, started - record.since
                stages[GATHER] = stages.get(GATHER, 0.0) + seconds
                metrics.duration(self._client.name, GATHER, 200).observe(seconds)
            try:
                self._answer(records)
            finally:
                with self._changed:
                    self._under_way.remove(longest)

    def _take(self) -> list[_Record]:
        """Take the next batch; an empty one ends the thread's turn."""
        records: list[_Record] = []
        with self._changed:
            if self._waiting and self._max_wait:
                oldest = min(queue[0].since for queue in self._waiting.values())
                self._changed.wait_for(
                    lambda: self._count >= self.max_batch, oldest + self._max_wait - time.monotonic()
                )
            found, most = self._may_begin(self._running - 1, *self._waiting.values()), self.max_batch
            while found and len(records) < most:
                found = has_last = False
                queues = sorted(self._waiting.items(), key=lambda item: not self._is_urgent(item[1]))
                for invocation, queue in queues:
                    if len(records) >= most or not self._may_join(queue[0], records):
                        continue
                    found, record = True, queue.popleft()
                    self._count -= 1
                    del self._waiting[invocation]
                    if queue:
                        self._waiting[invocation] = queue  # behind the others
                    has_last = has_last or not queue
                    if not record.is_gone:
                        records.append(record)
                # A caller with few records does not wait for a whole batch of another's.
                if has_last and records:
                    most = min(most, 2 * len(records))
            if records:
                self._under_way.append(max(record.length for record in records))
            else:
                self._running -= 1
        return records

    def _may_join(self, record: _Record, records: Sequence[_Record]) -> bool:
        """True if a record may go with these: the batch stays small, and no record is much longer."""
        if not records or record.is_gone:
            return True
        lengths = [record.length, *(each.length for each in records)]
        return max(lengths) * len(lengths) <= MAX_BATCH_LENGTH and _fit(min(lengths), max(lengths))

    def _answer(self, records: Sequence[_Record]) -> None:
        """Answer records together. If that fails, answer each half, so that a bad record fails alone.

        If a process died, answer each record alone at once: halves would kill a process each.
        """
        if len(records) == 1:
            record = records[0]
            _settle(record, record.context.run(self._answer_alone, record.payload))
            return
        invocation = self._invocation_of(records)
        invocation.is_batch = True
        try:
            answers = self._run(records, invocation, self._call)
        except BaseException as error:  # a client may call sys.exit()
            if invocation.suspicion is not None:
                for record in records:
                    _settle(record, self._answer_suspect(record, invocation.suspicion))
                return
            if isinstance(error, COMMON) or not self._client.repeatable:
                answers = [error] * len(records)
            else:
                if not isinstance(error, TriremeError):
                    log.warning(
                        "client %s failed with %d records together, so each half is tried",
                        self._client.name,
                        len(records),
                        exc_info=error,
                    )
                middle = len(records) // 2
                self._answer(records[:middle])
                self._answer(records[middle:])
                return
        for record, answer in zip(records, answers, strict=True):
            _settle(record, answer)

    def _answer_suspect(self, record: _Record, suspicion: Suspicion) -> object:
        """Answer a record that had company when a process died."""
        invocation = self._invocation_of([record])
        invocation.suspicion, invocation.session = suspicion, record.invocation.session
        return self._run([record], invocation, lambda payloads: self._answer_alone(payloads[0]))

    def _invocation_of(self, records: Sequence[_Record]) -> Invocation:
        """Return the invocation of one call for all records, which may take as long as the last of them."""
        invocations = {record.invocation for record in records}
        lead = _lead(records)
        invocation = Invocation(
            max(each.at for each in invocations),
            lambda: all(each.is_disconnected() for each in invocations),
            lead.invocation.request_id,
            lead.invocation.slot_model,
            lead.invocation.listener,
        )
        invocation.repeatable = self._client.repeatable
        # They all use this client, which is made for one version of each model.
        invocation.leases = lead.invocation.leases
        invocation.spent_waiting = lead.invocation.spent_waiting
        return invocation

    def _run(
        self, records: Sequence[_Record], invocation: Invocation, work: Callable[[Sequence[Payload]], Answers]
    ) -> Answers:
        """Do the work under a deadline, and tell each request what happened."""

        def run() -> Answers:
            with running(invocation):
                return work([record.payload for record in records])

        try:
            return _lead(records).context.run(run)
        finally:
            for each in {record.invocation for record in records}:
                each.tickets |= invocation.tickets
                each.repeats += invocation.repeats
                each.spent_waiting = max(each.spent_waiting, invocation.spent_waiting)
                for stage, seconds in invocation.stages.items():
                    each.stages[stage] = each.stages.get(stage, 0.0) + seconds

    def _call(self, payloads: Sequence[Payload]) -> list[object]:
        results = list(self._client.inference_batch(payloads))
        if len(results) != len(payloads):
            raise WrongCount(
                f"the client of {self._client.name!r} failed: it returned {len(results)} results for "
                f"{len(payloads)} records"
            )
        return results

    def _answer_alone(self, payload: Payload) -> object:
        try:
            return self._client.inference(payload)
        except BaseException as error:  # a client may call sys.exit()
            return error


def _fit(short: int, long: int) -> bool:
    """True if these lengths may share a batch: a padded record costs as much as the longest."""
    return long <= max(SHORT, 2 * short)


def _lead(records: Sequence[_Record]) -> _Record:
    """Return the record whose trace has the call. The others have a span of the batch."""
    return next((record for record in records if record.invocation.listener is not None), records[0])


def _settle(record: _Record, answer: object) -> None:
    record.answer = answer
    record.answered.release()
