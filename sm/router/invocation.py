"""One invocation while it runs: its deadline, its slot, its counts and its line in the log."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from dataclasses import dataclass

from sm import metrics
from sm.deadline import Deadline
from sm.errors import CallerGone, DeadlinePassed, Overloaded
from sm.http.messages import Answer, caller_network
from sm.router.admission import Admission
from sm.router.back_pressure import Stream
from sm.router.once import OnceNotes
from sm.router.request_log import LogSample, describe_error, line_level, log

#: The slot of an invocation that needs none.
NO_SLOT = Admission(None)
#: Seconds after its deadline at which an invocation that still runs is logged: before nginx, which does not
#: know its model, answers for it (:data:`sm.server.supervisor.nginx.TIMEOUT_MARGIN_S`).
OVERDUE_S = 4.0
#: Seconds between two checks for such invocations.
WATCH_INTERVAL_S = 0.5
OVERDUE = DeadlinePassed("the invocation's time is over, and its client still runs")


#: What a caller or a full box is the reason for does not count for or against a new version.
NOT_OF_A_VERSION = (CallerGone.status, Overloaded.status)
#: The invocations of this process that are not recorded yet. Whoever removes one records it.
_unrecorded: set[RunningInvocation] = set()


def record_overdue() -> None:
    """Count and log the invocations that still run :data:`OVERDUE_S` after their deadline."""
    latest = time.monotonic() - OVERDUE_S
    for invocation in list(_unrecorded):
        if invocation.deadline.at < latest:
            invocation.record(describe_error(OVERDUE))


@dataclass(slots=True, eq=False)
class RunningInvocation:
    """One invocation: its deadline, its slot, and its line in the log, which never has a payload.

    Entering it begins the count; leaving it counts, logs and gives back the slot. A streamed answer enters it
    a second time, so that the invocation ends with the stream.
    """

    #: Decides whether it is logged.
    sample: LogSample
    deadline: Deadline
    #: Seconds that it waited for a worker.
    waited: float = 0.0
    #: The name of the caller's API key.
    api_key_name: str = ""
    #: The caller's address; empty if it is not needed.
    address: str = ""
    #: True if the answer says where the time went.
    wants_timing: bool = False
    slot: Admission = NO_SLOT
    model: str = "-"
    #: The version that the caller named.
    version: str = ""
    #: Bytes of the request's body and of the answer's.
    bytes_in: int = 0
    bytes_out: int = 0
    #: Records or lines of the request; None if it is not a list.
    records: int | None = None
    #: Parts sent of a streamed answer.
    parts: int | None = None
    _entered: int = 0
    _started: float = 0.0

    @property
    def caller(self) -> str:
        """The name of the caller's API key, or the caller's address; of IPv6, the network of one customer."""
        return self.api_key_name or caller_network(self.address)

    def __enter__(self) -> RunningInvocation:
        if not self._entered:
            self._started = time.perf_counter()
            metrics.IN_FLIGHT.inc()
            _unrecorded.add(self)
            self.deadline.holds = {}
        self._entered += 1
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._entered -= 1
        if self._entered:
            return
        self.slot.leave()
        for hold in (self.deadline.holds or {}).values():
            hold.give_back()
        if self.deadline.note is not None:
            OnceNotes.end(self.deadline)
        self.record(None if error is None else describe_error(error), -1.0)
        if self.deadline.listener is not None:
            self.deadline.listener.ended(error)

    def record(self, failure: tuple[int, str, str] | None, running: float = 0.0) -> None:
        """Count and log the invocation, the first time that this is called.

        Args:
            failure: Status, code and reason of its error.
            running: Added to the invocations that are running.
        """
        try:
            _unrecorded.remove(self)
        except KeyError:
            metrics.IN_FLIGHT.inc(running)
            return
        seconds = time.perf_counter() - self._started
        status = 200 if failure is None else failure[0]
        stages, self.deadline.observations = self.deadline.observations or (), None
        total = metrics.duration(self.model, metrics.TOTAL, status)
        whole = (total.total, seconds), (total.buckets[bisect_left(metrics.BUCKETS, seconds)], 1.0)
        count = (metrics.invocations(self.model, status), 1.0)
        metrics.write((*stages, *whole, count, (metrics.IN_FLIGHT, running)))
        if self.deadline.holds and status not in NOT_OF_A_VERSION:
            # A list is answered with 200 if one of its records was right.
            of_version = self.deadline.failed_status or status
            for name, hold in list(self.deadline.holds.items()):
                if hold.variant:
                    metrics.variant(name, hold.variant, of_version).observe(seconds)
        level = line_level(self.sample, status, seconds)
        if level:
            log.log(level, "invocation", extra=self._line(status, failure, seconds))

    def finish(self, answer: Answer) -> Answer:
        """Complete the answer. If it is a stream, this object stays open until the stream ends."""
        if isinstance(answer.body, bytes):
            self.bytes_out = len(answer.body)
        else:
            answer.body = Stream(answer.body, self, self._count_part)
        if self.deadline.repeats:
            answer.headers = {**answer.headers, "X-Trireme-Repeated": "1"}
        if self.deadline.holds:
            variants = {hold.record.id: hold.variant for hold in self.deadline.holds.values() if hold.variant}
            for identity, variant in variants.items():
                answer.headers = {**answer.headers, "X-Trireme-Version": f"{identity}; {variant}"}
        if self.wants_timing:
            answer.headers = {**answer.headers, "Server-Timing": self._timing()}
        return answer

    def _count_part(self, part: bytes) -> None:
        self.parts = (self.parts or 0) + 1
        self.bytes_out += len(part)

    def _timing(self) -> str:
        """Say where the time went; for a stream, until its first part."""
        stages = self.deadline.stages
        entries = {
            metrics.QUEUE: self.waited + stages.get(metrics.QUEUE, 0.0),
            **{name: seconds for name, seconds in stages.items() if name != metrics.QUEUE},
            "total": time.perf_counter() - self._started,
        }
        # A name must be a token of HTTP.
        names = (re.sub("[^0-9A-Za-z]", "-", name) for name in entries)
        return ", ".join(
            f"{name};dur={1000 * seconds:.2f}" for name, seconds in zip(names, entries.values(), strict=True)
        )

    def _line(self, status: int, failure: tuple[int, str, str] | None, seconds: float) -> dict[str, object]:
        stages = {name: round(1000 * part, 2) for name, part in self.deadline.stages.copy().items()}
        queue_ms = round(1000 * self.waited + stages.pop(metrics.QUEUE, 0.0), 2)
        _, code, reason = failure or (0, None, None)
        hold = (self.deadline.holds or {}).get(self.model)
        line = {
            "model": self.model,
            "status": status,
            "version": self.version or None,
            "version_id": hold.record.id if hold and hold.record.version else None,
            "variant": (hold and hold.variant) or None,
            "code": code,
            "reason": reason,
            "ms": round(seconds * 1000, 2),
            "queue_ms": queue_ms,
            "stages_ms": stages or None,
            "repeats": self.deadline.repeats or None,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out or None,
            "records": self.records,
            "request_id": self.deadline.request_id,
            "parts": self.parts,
            "api_key_name": self.api_key_name or None,
        }
        return {name: value for name, value in line.items() if value is not None}
