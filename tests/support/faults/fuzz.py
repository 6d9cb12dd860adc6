"""Send thousands of odd requests to one box, which must never hang, crash or answer them with a 5xx."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse

from tests.support.boxes import RunningBox
from tests.support.faults import report
from tests.support.faults.boxes import all_processes
from tests.support.faults.callers import RIGHT, Callers
from tests.support.faults.inputs import Sample
from tests.support.faults.requests_at_random import FORMS, RandomRequest, draw_request

CALLERS = 4
#: One request in so many is a valid one whose answer is checked.
REQUESTS_PER_GOLDEN_ANSWER = 25
#: A complete request without an answer for so long is a hang. No request here takes nearly as long.
HANG_S = 20.0
#: Statuses that HTTP prescribes for an unknown method, transfer coding or version. These forms may get them.
PROTOCOL_ERRORS = {501, 505}
BROKEN_HTTP = ("odd methods and paths", "odd lengths", "chunked", "truncated", "garbage")
MAX_RECORDED_FINDINGS = 40
PROGRESS_INTERVAL_S = 30.0
COLUMNS = ("form", "requests", "2xx", "3xx", "4xx", "5xx", "no answer", "hangs", "findings")


@dataclass
class Fuzz:
    """Sends ``count`` random requests of ``seed``, from the number ``first`` on. :meth:`run` it once."""

    box: RunningBox
    samples: Sequence[Sample]
    seed: int
    count: int
    first: int = 0
    tally: dict[str, Counter[str]] = field(default_factory=lambda: {form: Counter() for form in FORMS})
    findings: list[str] = field(default_factory=list)
    golden: Counter[str] = field(default_factory=Counter)
    processes_lost: list[int] = field(default_factory=list)
    _taken: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, report_progress: Callable[[str], None] = lambda line: None) -> Fuzz:
        before = all_processes(self.box)
        threads = [
            threading.Thread(target=self._run_caller, args=(number,), daemon=True)
            for number in range(CALLERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(PROGRESS_INTERVAL_S)
                report_progress(f"{self._taken} of {self.count} requests, {len(self.findings)} findings")
        after = set(all_processes(self.box))
        self.processes_lost = [pid for pid in before if pid not in after]
        return self

    def misses(self) -> list[str]:
        """Return a sentence for each goal that the box misses."""
        missed = [f"{len(self.findings)} findings"] if self.findings else []
        if set(self.golden) - {RIGHT}:
            missed.append(f"golden answers: {dict(self.golden)}")
        if self.processes_lost:
            missed.append(f"{len(self.processes_lost)} processes ended")
        if self.box.ping()[0] != 200:
            missed.append("/ping is not 200")
        return missed

    def markdown(self) -> str:
        rows = [[form, *(str(count[column]) for column in COLUMNS[1:])] for form, count in self.tally.items()]
        total = sum(self.tally.values(), Counter())
        rows.append(["all", *(str(total[column]) for column in COLUMNS[1:])])
        asked = f"Golden answers in between: {', '.join(f'{count} × {what}' for what, count in self.golden.items())}."
        return f"{report.table(COLUMNS, rows)}\n\n{asked} Processes that ended: {len(self.processes_lost)}."

    def _take_number(self) -> int | None:
        with self._lock:
            if self._taken >= self.count:
                return None
            self._taken += 1
            return self.first + self._taken - 1

    def _run_caller(self, caller: int) -> None:
        while (number := self._take_number()) is not None:
            drawn = draw_request(self.seed, number)
            status, finding = judge(drawn, *send(self.box.port, drawn))
            with self._lock:
                count = self.tally[drawn.form]
                count["requests"] += 1
                count[status] += 1
                if finding:
                    count["findings"] += 1
                    if len(self.findings) < MAX_RECORDED_FINDINGS:
                        start = drawn.content[:100]
                        self.findings.append(
                            f"{number}, {drawn.form}: {finding}; the request begins {start!r}"
                        )
            if number % REQUESTS_PER_GOLDEN_ANSWER == 0:
                self._check_golden_answer(number)

    def _check_golden_answer(self, number: int) -> None:
        sample = random.Random(number).choice(self.samples)
        callers = Callers(self.box.port, [sample], count=1, limit=1, hang_after_s=HANG_S).start().join()
        with self._lock:
            self.golden += callers.outcomes()
            self.findings += callers.details


def send(port: int, drawn: RandomRequest) -> tuple[int, str, bytes]:
    """Return status, content type and body of the answer; status 0: connection closed without one, -1: a hang."""
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as connection:
        # A server may respond and close before it has read the whole request.
        with contextlib.suppress(ConnectionError):
            connection.sendall(drawn.content)
            if not drawn.complete:
                connection.shutdown(socket.SHUT_WR)
        response = HTTPResponse(connection, method=drawn.method)
        try:
            response.begin()
            return response.status, response.getheader("Content-Type", ""), response.read()
        except TimeoutError:
            return -1, "", b""
        except (OSError, HTTPException, ValueError):
            return 0, "", b""


def judge(drawn: RandomRequest, status: int, content_type: str, body: bytes) -> tuple[str, str]:
    """Return the answer's column in the table, and what is wrong with it; empty: nothing."""
    if status == -1:
        return "hangs", f"no answer in {HANG_S:g} s"
    if status == 0:
        return "no answer", "a whole request, and no answer" if drawn.complete else ""
    column = f"{max(status // 100, 2)}xx"  # 101 is a WebSocket's success
    if status >= 500 and not (status in PROTOCOL_ERRORS and drawn.form in BROKEN_HTTP):
        return column, f"{status} {body[:200]!r}"
    if status >= 300 and b"<html" in body.lower():
        return column, f"{status} in HTML"
    if status >= 400 and drawn.method != "HEAD" and not is_error_body(body):
        return column, f"{status} {content_type} in another shape: {body[:120]!r}"
    return column, ""


def is_error_body(body: bytes) -> bool:
    """Return true if the body has the box's error shape, or that of SageMaker's runtime."""
    try:
        found = json.loads(body)
    except ValueError:
        # A response in JSON lines is an error if all its lines are.
        lines = body.splitlines()
        return bool(lines) and all(is_error_line(line) for line in lines)
    return isinstance(found, dict) and (
        {"error", "code", "request_id"} <= set(found) or "OriginalMessage" in found
    )


def is_error_line(line: bytes) -> bool:
    with contextlib.suppress(ValueError):
        return {"error", "code"} <= set(json.loads(line))
    return False
