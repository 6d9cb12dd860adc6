"""Thousands of odd requests to one box, and what it must never do: hang, die, or blame itself for its callers."""

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
from tests.support.faults.boxes import everything
from tests.support.faults.callers import RIGHT, Callers
from tests.support.faults.inputs import Sample
from tests.support.faults.requests_at_random import FORMS, Drawn, draw

CALLERS = 4
#: Between two golden answers that are asked for, over all callers.
GOLDEN_EVERY = 25
#: No answer to a whole request for so long is a hang. The box's own deadline is longer: nothing here takes that long.
HANG_S = 20.0
#: What HTTP itself says of a method, a transfer coding or a version that a server does not know, in these forms.
HTTP_ITSELF = {501, 505}
BROKEN_HTTP = ("odd methods and paths", "odd lengths", "chunked", "truncated", "garbage")
MAX_FINDINGS = 40
PROGRESS_INTERVAL_S = 30.0
COLUMNS = ("form", "requests", "2xx", "3xx", "4xx", "5xx", "no answer", "hangs", "findings")


@dataclass
class Fuzz:
    """``count`` requests from ``first`` on, drawn with ``seed``; :meth:`run` once."""

    box: RunningBox
    samples: Sequence[Sample]
    seed: int
    count: int
    first: int = 0
    tally: dict[str, Counter[str]] = field(default_factory=lambda: {form: Counter() for form in FORMS})
    findings: list[str] = field(default_factory=list)
    golden: Counter[str] = field(default_factory=Counter)
    processes_lost: list[int] = field(default_factory=list)
    _given: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, tell: Callable[[str], None] = lambda line: None) -> Fuzz:
        before = everything(self.box)
        threads = [
            threading.Thread(target=self._call, args=(number,), daemon=True) for number in range(CALLERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(PROGRESS_INTERVAL_S)
                tell(f"{self._given} of {self.count} requests, {len(self.findings)} findings")
        after = set(everything(self.box))
        self.processes_lost = [pid for pid in before if pid not in after]
        return self

    def misses(self) -> list[str]:
        """Where the box misses the goal, in words."""
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

    def _next(self) -> int | None:
        with self._lock:
            if self._given >= self.count:
                return None
            self._given += 1
            return self.first + self._given - 1

    def _call(self, caller: int) -> None:
        while (number := self._next()) is not None:
            drawn = draw(self.seed, number)
            status, finding = judge(drawn, *send(self.box.port, drawn))
            with self._lock:
                count = self.tally[drawn.form]
                count["requests"] += 1
                count[status] += 1
                if finding:
                    count["findings"] += 1
                    if len(self.findings) < MAX_FINDINGS:
                        start = drawn.content[:100]
                        self.findings.append(
                            f"{number}, {drawn.form}: {finding}; the request begins {start!r}"
                        )
            if number % GOLDEN_EVERY == 0:
                self._ask_golden(number)

    def _ask_golden(self, number: int) -> None:
        sample = random.Random(number).choice(self.samples)
        asked = Callers(self.box.port, [sample], count=1, limit=1, hang_after_s=HANG_S).start().join()
        with self._lock:
            self.golden += asked.outcomes()
            self.findings += asked.details


def send(port: int, drawn: Drawn) -> tuple[int, str, bytes]:
    """Status, content type and body of the answer; status 0: the connection was closed without one, -1: a hang."""
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as connection:
        # A server may answer and close before it has read all.
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


def judge(drawn: Drawn, status: int, content_type: str, body: bytes) -> tuple[str, str]:
    """The column of the table that the answer belongs to, and what is wrong with it, if anything."""
    if status == -1:
        return "hangs", f"no answer in {HANG_S:g} s"
    if status == 0:
        return "no answer", "a whole request, and no answer" if drawn.complete else ""
    column = f"{max(status // 100, 2)}xx"  # 101 is a WebSocket's success
    if status >= 500 and not (status in HTTP_ITSELF and drawn.form in BROKEN_HTTP):
        return column, f"{status} {body[:200]!r}"
    if status >= 300 and b"<html" in body.lower():
        return column, f"{status} in HTML"
    if status >= 400 and drawn.method != "HEAD" and not is_error_body(body):
        return column, f"{status} {content_type} in another shape: {body[:120]!r}"
    return column, ""


def is_error_body(body: bytes) -> bool:
    """The box's own shape, or that of SageMaker's runtime."""
    try:
        found = json.loads(body)
    except ValueError:
        # JSON lines, all of which failed.
        lines = body.splitlines()
        return bool(lines) and all(is_error_line(line) for line in lines)
    return isinstance(found, dict) and (
        {"error", "code", "request_id"} <= set(found) or "OriginalMessage" in found
    )


def is_error_line(line: bytes) -> bool:
    with contextlib.suppress(ValueError):
        return {"error", "code"} <= set(json.loads(line))
    return False
