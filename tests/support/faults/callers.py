"""Callers that compare every answer with the golden one."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException

from tests.support.faults.inputs import Sample

RIGHT, WRONG, RESET, REFUSED, HANG = "200", "wrong answer", "reset", "refused", "hang"
#: Some records of a request failed; the answers to the others are right.
PARTLY_RIGHT = "200 in part"
#: A caller repeats a failed request so soon, to see the recovery early.
RETRY_INTERVAL_S = 0.1
MAX_DETAILS = 20  # sentences kept for the report


@dataclass(frozen=True)
class Reply:
    """The outcome of one request. Times are those of ``time.monotonic``."""

    sample: str
    model: str
    started: float
    ended: float
    outcome: str

    @property
    def failed(self) -> bool:
        return self.outcome != RIGHT


@dataclass(frozen=True)
class Result:
    """An outcome, what was wrong, and whether the connection must be closed."""

    outcome: str
    detail: str = ""
    broken: bool = False


@dataclass
class Callers:
    """``count`` threads that send ``samples`` in a random order until :meth:`stop`.

    Callers keep their connection or open one for each request. Half of the callers send requests only for the
    model ``focus``, if it is set, so that its requests queue.
    """

    port: int
    samples: Sequence[Sample]
    count: int = 8
    #: A request without an answer for so long is a hang.
    hang_after_s: float = 60.0
    focus: str = ""
    seed: int = 0
    #: The number of requests of all callers together; 0: no limit.
    limit: int = 0
    host: str = "127.0.0.1"
    #: Of every two callers so many keep their connection.
    kept_of_two: int = 1
    replies: list[Reply] = field(default_factory=list)
    #: What was wrong, in sentences.
    details: list[str] = field(default_factory=list)
    _sent: int = 0
    _stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> Callers:
        self._threads = [
            threading.Thread(target=self._run_caller, args=(number,), daemon=True)
            for number in range(self.count)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> Callers:
        self._stopped.set()
        return self.join()

    def join(self, seconds: float | None = None) -> Callers:
        """Wait for the callers to end. Every request ends, as a hang if need be."""
        for thread in self._threads:
            thread.join(seconds)
        return self

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def outcomes(self) -> Counter[str]:
        with self._lock:
            return Counter(reply.outcome for reply in self.replies)

    def snapshot(self) -> list[Reply]:
        with self._lock:
            return list(self.replies)

    def _next_sample(self, choice: random.Random, own_samples: Sequence[Sample]) -> Sample | None:
        with self._lock:
            if self._stopped.is_set() or (self.limit and self._sent >= self.limit):
                return None
            self._sent += 1
        return choice.choice(own_samples)

    def _run_caller(self, number: int) -> None:
        choice = random.Random(self.seed * 1000 + number)
        focused = [sample for sample in self.samples if sample.model == self.focus]
        own_samples = focused if focused and number < self.count // 2 else self.samples
        connection: HTTPConnection | None = None
        while sample := self._next_sample(choice, own_samples):
            if connection is None or (number % 2 + self.kept_of_two < 2):
                if connection is not None:
                    connection.close()
                connection = HTTPConnection(self.host, self.port, timeout=self.hang_after_s)
            started = time.monotonic()
            result = self._send(connection, sample)
            reply = Reply(sample.name, sample.model, started, time.monotonic(), result.outcome)
            with self._lock:
                self.replies.append(reply)
                if result.detail and len(self.details) < MAX_DETAILS:
                    self.details.append(f"{sample.name}: {result.detail}")
            if result.broken:
                connection.close()
                connection = None
            if reply.failed:
                self._stopped.wait(RETRY_INTERVAL_S)
        if connection is not None:
            connection.close()

    def _send(self, connection: HTTPConnection, sample: Sample) -> Result:
        try:
            # The server may respond and close before it has read the whole request (429), as urllib3 knows too.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(
                    "POST", sample.path, body=sample.body, headers={"Content-Type": sample.content_type}
                )
            response = connection.getresponse()
            answer = response.read()
        except TimeoutError:
            return Result(HANG, f"no answer in {self.hang_after_s:g} s", broken=True)
        except ConnectionRefusedError:
            return Result(REFUSED, broken=True)
        except (OSError, HTTPException) as error:
            return Result(RESET, repr(error), broken=True)
        if response.status != 200:
            advice = response.getheader("Retry-After") or ""
            detail = ""
            if response.status in (429, 503) and not advice.isdigit():
                detail = f"{response.status} without Retry-After"
            elif response.status not in (429, 503, 504):
                detail = f"{response.status} {answer[:200]!r}"
            return Result(str(response.status), detail, response.will_close)
        differences = sample.differences(answer)
        if differences:
            return Result(WRONG, f"WRONG ANSWER: {differences[0]}")
        return Result(PARTLY_RIGHT) if sample.failed_records(answer) else Result(RIGHT)
