"""Callers that compare every answer with the golden one."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple

from tests.support.faults.inputs import Sample

RIGHT, WRONG, RESET, REFUSED, HANG = "200", "wrong answer", "reset", "refused", "hang"
#: Some records of a request failed; the answers to the others are right.
PARTLY_RIGHT = "200 in part"
#: A caller repeats a failed request so soon, to see the recovery early.
RETRY_INTERVAL_S = 0.1
MAX_DETAILS = 20  # sentences kept for the report


class Reply(NamedTuple):
    """The outcome of one request. Times are those of ``time.monotonic``."""

    model: str
    started: float
    ended: float
    outcome: str

    @property
    def failed(self) -> bool:
        return self.outcome != RIGHT


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
    #: Counts the requests; one ``next`` is one step for all threads, as an append to a list is.
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> Callers:
        for number in range(self.count):
            self._threads.append(threading.Thread(target=self._run_caller, args=(number,), daemon=True))
            self._threads[-1].start()
        return self

    def stop(self) -> Callers:
        self._stopped.set()
        return self.join()

    def join(self) -> Callers:
        """Wait for the callers to end. Every request ends, as a hang if need be."""
        for thread in self._threads:
            thread.join()
        return self

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def outcomes(self) -> Counter[str]:
        return Counter(reply.outcome for reply in self.snapshot())

    def snapshot(self) -> list[Reply]:
        return self.replies.copy()

    def _run_caller(self, number: int) -> None:
        choice = random.Random(self.seed * 1000 + number)
        focused = [sample for sample in self.samples if sample.model == self.focus]
        own_samples = focused if focused and number < self.count // 2 else self.samples
        is_kept = number % 2 + self.kept_of_two >= 2
        connection = HTTPConnection(self.host, self.port, timeout=self.hang_after_s)
        while not self._stopped.is_set() and not (self.limit and next(self._numbers) >= self.limit):
            sample, started = choice.choice(own_samples), time.monotonic()
            outcome, detail = self._send(connection, sample)
            reply = Reply(sample.model, started, time.monotonic(), outcome)
            self.replies.append(reply)
            if detail and len(self.details) < MAX_DETAILS:
                self.details.append(f"{sample.name}: {detail}")
            if not is_kept or outcome in (HANG, REFUSED, RESET):
                connection.close()  # the next request opens it again
            if reply.failed:
                self._stopped.wait(RETRY_INTERVAL_S)
        connection.close()

    def _send(self, connection: HTTPConnection, sample: Sample) -> tuple[str, str]:
        """Return the outcome, and what was wrong."""
        try:
            # The server may respond and close before it has read the whole request (429), as urllib3 knows too.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request("POST", sample.path, sample.body, {"Content-Type": sample.content_type})
            response = connection.getresponse()
            answer = response.read()
        except TimeoutError:
            return HANG, f"no answer in {self.hang_after_s:g} s"
        except ConnectionRefusedError:
            return REFUSED, ""
        except (OSError, HTTPException) as error:
            return RESET, repr(error)
        status = response.status
        if status in (429, 503):
            advice = response.getheader("Retry-After") or ""
            return str(status), "" if advice.isdigit() else f"{status} without Retry-After"
        if status != 200:
            return str(status), "" if status == 504 else f"{status} {answer[:200]!r}"
        if differences := sample.differences(answer):
            return WRONG, f"WRONG ANSWER: {differences[0]}"
        return PARTLY_RIGHT if sample.failed_records(answer) else RIGHT, ""
