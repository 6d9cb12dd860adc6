"""One invocation while it runs: what its steps share, and its count and log line at its end.

The line has its model, outcome and reason, and never a payload, a key or a token.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable

from sm import metrics
from sm.deadline import Deadline, Listener
from sm.errors import CallerGone, ClientFailed, DeadlinePassed, TriremeError
from sm.http.messages import Answer
from sm.router.admission import Admission
from sm.router.streaming.stream import Stream

log = logging.getLogger(__name__)

#: Characters of a reason. The caller reads the whole sentence in the answer.
MAX_REASON_CHARACTERS = 200
#: What an error's sentence quotes: ``'…'``, ``"…"`` and, if the end is missing, the rest.
QUOTED = re.compile(r"'(?:[^'\\]|\\.)*(?:'|$)|\"(?:[^\"\\]|\\.)*(?:\"|$)", re.DOTALL)


#: The slot of an invocation that needs none.
NO_SLOT = Admission(None)
#: Seconds after its deadline at which an invocation that still runs is logged: before nginx, which does not
#: know its model, answers for it (:data:`sm.server.supervisor.front.TIMEOUT_MARGIN_S`).
OVERDUE_S = 4.0
#: Seconds between two checks for such invocations.
WATCH_INTERVAL_S = 0.5
OVERDUE = DeadlinePassed("the invocation's time is over, and its client still runs")


class RequestLog:
    """Decides which invocations are logged, and at which level.

    Args:
        sample: The fraction of successful invocations that are logged. Errors are always logged.
        slow_s: Successful invocations that took more seconds are always logged.
        chance: Returns a number from 0 to 1 for each sampled line.
    """

    def __init__(
        self, sample: float = 1.0, slow_s: float = 1.0, chance: Callable[[], float] = random.random
    ) -> None:
        self._sample, self._slow_s, self._chance = sample, slow_s, chance

    def level(self, status: int, seconds: float) -> int:
        """Return the level of an invocation's line; 0 if there is no line."""
        level = logging.INFO if status < 400 else level_of(status)
        if status < 400 and self._sample < 1.0 and seconds <= self._slow_s and self._chance() >= self._sample:
            return 0
        return level if log.isEnabledFor(level) else 0

    def write(self, level: int, members: dict[str, object]) -> None:
        """Write the line."""
        log.log(level, "invocation", extra=members)


def level_of(status: int) -> int:
    """Return the level of a status, the same as in nginx's lines. A caller that leaves is not a fault."""
    if status < 400 or status == CallerGone.status:
        return logging.INFO
    return logging.WARNING if status < 500 else logging.ERROR


def as_trireme_error(error: BaseException) -> TriremeError:
    """Return the error that the caller of a failed invocation reads."""
    if isinstance(error, TriremeError):
        return error
    if isinstance(error, GeneratorExit):
        # The caller left before the stream ended.
        return CallerGone("the caller hung up")
    return ClientFailed(f"unexpected {type(error).__name__}")


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


#: The invocations of this process that are not recorded yet. Whoever removes one records it.
_unrecorded: set[RunningInvocation] = set()


def record_overdue() -> None:
    """Count and log the invocations that still run :data:`OVERDUE_S` after their deadline."""
    latest = time.monotonic() - OVERDUE_S
    for invocation in list(_unrecorded):
        if invocation.deadline.at < latest:
            invocation.record(describe_error(OVERDUE))


class RunningInvocation:
    """One invocation: its deadline, its slot, and its line in the log, which never has a payload.

    Entering it begins the count; leaving it counts, logs and gives back the slot. A streamed answer enters it
    a second time, so that the invocation ends with the stream.

    Args:
        requests: Decides whether it is logged.
        request_id: Its id.
        timeout: Seconds that it may take, the wait for a worker included.
        waited: Seconds that it waited for a worker.
        is_disconnected: Returns True if the caller is gone.
        listener: Hears its parts.
        api_key_name: The name of the caller's API key.
        address: The caller's address; empty if it is not needed.
        wants_timing: True if the answer says where the time went.
    """

    __slots__ = (
        "_address",
        "_api_key_name",
        "_entered",
        "_requests",
        "_started",
        "_wants_timing",
        "bytes_in",
        "bytes_out",
        "deadline",
        "model",
        "parts",
        "records",
        "refusal",
        "slot",
        "version",
        "waited",
    )

    def __init__(
        self,
        requests: RequestLog,
        request_id: str,
        timeout: float,
        waited: float = 0.0,
        is_disconnected: Callable[[], bool] = lambda: False,
        listener: Listener | None = None,
        api_key_name: str = "",
        address: str = "",
        wants_timing: bool = False,
    ) -> None:
        self.deadline = Deadline(
            time.monotonic() + timeout - waited, is_disconnected, request_id, listener=listener
        )
        self.waited = waited
        self.slot = NO_SLOT
        self.model = "-"
        #: The version that the caller named.
        self.version = ""
        #: Status, code and reason of an error that Triton answered itself, so that no exception shows it.
        self.refusal: tuple[int, str, str] | None = None
        #: Bytes of the request's body and of the answer's.
        self.bytes_in = self.bytes_out = 0
        #: Records or lines of the request; None if it is not a list.
        self.records: int | None = None
        #: Parts sent of a streamed answer.
        self.parts: int | None = None
        self._requests, self._wants_timing = requests, wants_timing
        self._api_key_name, self._address = api_key_name, address
        self._entered = 0

    @property
    def caller(self) -> str:
        """The name of the caller's API key, or the caller's address."""
        return self._api_key_name or self._address

    def __enter__(self) -> RunningInvocation:
        if not self._entered:
            self._started = time.perf_counter()
            metrics.IN_FLIGHT.inc()
            _unrecorded.add(self)
        self._entered += 1
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._entered -= 1
        if self._entered:
            return
        self.slot.leave()
        self.record(self.refusal if error is None else describe_error(error), -1.0)
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
        observations, self.deadline.observations = self.deadline.observations or (), None
        metrics.write_end(self.model, status, seconds, observations, running)
        level = self._requests.level(status, seconds)
        if level:
            self._requests.write(level, self._line(status, failure, seconds))

    def finish(self, answer: Answer) -> Answer:
        """Complete the answer. If it is a stream, this object stays open until the stream ends."""
        if isinstance(answer.body, bytes):
            self.bytes_out = len(answer.body)
        else:
            answer.body = Stream(answer.body, self, self._count_part)
        if self.deadline.repeats:
            answer.headers = {**answer.headers, "X-Trireme-Repeated": "1"}
        if self._wants_timing:
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
        return ", ".join(f"{_token(name)};dur={1000 * seconds:.2f}" for name, seconds in entries.items())

    def _line(self, status: int, failure: tuple[int, str, str] | None, seconds: float) -> dict[str, object]:
        line: dict[str, object] = {"model": self.model, "status": status}
        if self.version:
            line["version"] = self.version
        if failure is not None:
            _, line["code"], line["reason"] = failure
        line["ms"] = round(seconds * 1000, 2)
        stages = {name: round(1000 * part, 2) for name, part in self.deadline.stages.copy().items()}
        line["queue_ms"] = round(1000 * self.waited + stages.pop(metrics.QUEUE, 0.0), 2)
        if stages:
            line["stages_ms"] = stages
        if self.deadline.repeats:
            line["repeats"] = self.deadline.repeats
        line["bytes_in"] = self.bytes_in
        if self.bytes_out:
            line["bytes_out"] = self.bytes_out
        if self.records is not None:
            line["records"] = self.records
        line["request_id"] = self.deadline.request_id
        if self.parts is not None:
            line["parts"] = self.parts
        if self._api_key_name:
            line["api_key_name"] = self._api_key_name
        return line


def _token(name: str) -> str:
    """Return a stage's name as an HTTP token, which the header requires."""
    return "".join(character if character.isascii() and character.isalnum() else "-" for character in name)
