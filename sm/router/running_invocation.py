"""An invocation that came over HTTP: its slot, its counts and its line in the log."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from sm import metrics
from sm.errors import CallerGone, DeadlinePassed, TriremeError, as_trireme_error
from sm.http.messages import Answer, caller_network
from sm.invocation import Invocation
from sm.models.canary import says_failed
from sm.router.admission import Admission
from sm.router.back_pressure import Stream
from sm.router.once import OnceNotes

log = logging.getLogger(__name__)
#: Characters of a reason. The caller reads the whole sentence in the answer.
MAX_REASON_CHARACTERS = 200
#: The parts that an error's sentence quotes: ``'…'``, ``"…"`` and, if the end is missing, the rest.
QUOTED = re.compile(r"'(?:[^'\\]|\\.)*(?:'|$)|\"(?:[^\"\\]|\\.)*(?:\"|$)", re.DOTALL)


class LogSample(NamedTuple):
    """Which successful invocations are logged. Errors always are."""

    #: The fraction of them.
    fraction: float = 1.0
    #: Requests that took more seconds are always logged.
    slow_s: float = 1.0
    #: Returns a number from 0 to 1 for each line.
    chance: Callable[[], float] = random.random


def line_level(sample: LogSample, status: int, seconds: float) -> int:
    """Return the level of an invocation's line, the same as in nginx's; 0 if there is no line."""
    level = logging.INFO
    if status >= 400 and status != CallerGone.status:  # a caller that leaves is not a fault
        level = logging.WARNING if status < 500 else logging.ERROR
    if status < 400 and sample.fraction < 1.0 and seconds <= sample.slow_s:
        level = level if sample.chance() < sample.fraction else 0
    return level if level and log.isEnabledFor(level) else 0


def describe_error(error: BaseException) -> tuple[int, str, str]:
    """Return the status, the code and the reason of a failed invocation."""
    trireme_error = as_trireme_error(error)
    return trireme_error.status, trireme_error.code, reason_of(trireme_error)


def reason_of(error: TriremeError) -> str:
    """Return an error's sentence for the log: one short line without what the caller sent."""
    text = error.sentence if error.log_reason is None else error.log_reason
    if error.quotes_caller:
        text = QUOTED.sub("'…'", text)
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARACTERS else f"{line[: MAX_REASON_CHARACTERS - 1]}…"


#: The slot of an invocation that needs none, and the sample of all lines.
NO_SLOT, ALL_LINES = Admission(None), LogSample()
#: Seconds after its deadline at which an invocation that still runs is logged: before nginx, which does not
#: know its model, answers for it (:data:`sm.server.supervisor.nginx.TIMEOUT_MARGIN_S`).
OVERDUE_S = 4.0
OVERDUE = DeadlinePassed("the invocation's time is over, and its client still runs")


#: The invocations of this process that are not recorded yet. Whoever removes one records it.
_unrecorded: set[RunningInvocation] = set()
#: Seconds for which a process that ran two invocations at once is expected to do so again.
COMPANY_S = 1.0
_last_company = -COMPANY_S


def in_company() -> bool:
    """True if this process runs several invocations, or did a moment ago."""
    return len(_unrecorded) > 1 or time.monotonic() < _last_company + COMPANY_S


def record_overdue() -> None:
    """Count and log the invocations that still run :data:`OVERDUE_S` after their deadline."""
    latest = time.monotonic() - OVERDUE_S
    for invocation in list(_unrecorded):
        if invocation.at < latest:
            invocation.record(describe_error(OVERDUE))


@dataclass(slots=True, eq=False, repr=False)
class RunningInvocation(Invocation):
    """An invocation that came over HTTP: it counts and logs itself. Its line in the log has no payload.

    Entering it begins the count; leaving it counts, logs and gives back the slot. A streamed answer enters it
    a second time, so that the invocation ends with the stream.
    """

    _: KW_ONLY
    #: Decides whether it is logged.
    sample: LogSample = ALL_LINES
    #: Seconds that it waited for a worker.
    waited: float = 0.0
    #: The name of the caller's API key.
    api_key_name: str = ""
    #: The caller's address; empty if it is not needed.
    address: str = ""
    #: True if the answer says where the time went.
    wants_timing: bool = False
    slot: Admission = NO_SLOT
    #: The name of its model in the log and the metrics, and the version that the caller named.
    model: str = "-"
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

    def waiting_for(self, model: str) -> AbstractContextManager[object]:
        # Once it is admitted it has its slot, and its lines share that.
        return nullcontext() if self.slot_model else self.slot.waiting(model, self)

    def __enter__(self) -> RunningInvocation:
        if not self._entered:
            self._started = time.perf_counter()
            metrics.IN_FLIGHT.inc()
            _unrecorded.add(self)
            if len(_unrecorded) > 1:
                global _last_company
                _last_company = time.monotonic()
            self.leases = {}
        self._entered += 1
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._entered -= 1
        if self._entered:
            return
        self.slot.leave()
        for lease in (self.leases or {}).values():
            lease.give_back()
        if self.note is not None:
            OnceNotes.end(self)
        self.record(None if error is None else describe_error(error), -1.0)
        if self.listener is not None:
            self.listener.ended(error)

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
        metrics.duration(self.model, metrics.TOTAL, status).observe(seconds)
        metrics.invocations(self.model, status).inc()
        metrics.IN_FLIGHT.inc(running)
        # A list is answered with 200 if one of its records was right.
        of_version = self.failed_status or status
        if self.leases and says_failed(of_version) is not None:
            for name, lease in list(self.leases.items()):
                if lease.variant:
                    metrics.variant(name, lease.variant, of_version).observe(seconds)
        level = line_level(self.sample, status, seconds)
        if level:
            log.log(level, "invocation", extra=self._line(status, failure, seconds))

    def finish(self, answer: Answer) -> Answer:
        """Complete the answer. If it is a stream, this object stays open until the stream ends."""
        if isinstance(answer.body, bytes):
            self.bytes_out = len(answer.body)
        else:
            answer.body = Stream(answer.body, self, self._count_part)
        if self.repeats:
            answer.headers = {**answer.headers, "X-Trireme-Repeated": "1"}
        if self.leases:
            variants = {lease.record.id: lease.variant for lease in self.leases.values() if lease.variant}
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
        stages = self.stages
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
        stages = {name: round(1000 * part, 2) for name, part in self.stages.copy().items()}
        queue_ms = round(1000 * self.waited + stages.pop(metrics.QUEUE, 0.0), 2)
        _, code, reason = failure or (0, None, None)
        lease = (self.leases or {}).get(self.model)
        line = {
            "model": self.model,
            "status": status,
            "version": self.version or None,
            "version_id": lease.record.id if lease and lease.record.version else None,
            "variant": (lease and lease.variant) or None,
            "code": code,
            "reason": reason,
            "ms": round(seconds * 1000, 2),
            "queue_ms": queue_ms,
            "stages_ms": stages or None,
            "repeats": self.repeats or None,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out or None,
            "records": self.records,
            "request_id": self.request_id,
            "parts": self.parts,
            "api_key_name": self.api_key_name or None,
        }
        return {name: value for name, value in line.items() if value is not None}
