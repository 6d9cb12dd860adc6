"""Send requests from many threads at once, and count every outcome."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException


@dataclass
class Load:
    """Threads that post ``body`` again and again, each time on a new connection."""

    port: int
    body: bytes
    content_type: str = "application/json"
    path: str = "/invocations"
    #: Seconds to wait after a 429 or 503, which ask for it with ``Retry-After``.
    retry_delay_s: float = 0.0
    #: Counts by status, or by "refused" (no connection) or "lost" (request sent, no response).
    outcomes: Counter[str] = field(default_factory=Counter)
    bodies: set[bytes] = field(default_factory=set)
    headers: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the callers, also when a test fails: they would disturb the next test."""
        self.stop()

    def start(self, callers: int, requests_each: int = 100_000) -> Load:
        self._threads = [
            threading.Thread(target=self._call, args=(requests_each,), daemon=True) for _ in range(callers)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> Load:
        self._stop.set()
        return self.join()

    def join(self) -> Load:
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a request hangs"
        return self

    def _call(self, count: int) -> None:
        for _ in range(count):
            if self._stop.is_set():
                return
            started = time.monotonic()
            outcome, content, head = self._send_request()
            with self._lock:
                self.outcomes[outcome] += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - started)
                if outcome == "200":
                    self.bodies.add(content)
                elif outcome in ("429", "503"):
                    self.headers.append(head)
            if outcome in ("429", "503"):
                time.sleep(self.retry_delay_s)
            elif outcome == "refused":
                time.sleep(0.05)

    def _send_request(self) -> tuple[str, bytes, str]:
        headers = {"Connection": "close", "Content-Type": self.content_type}
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=90)) as connection:
            try:
                connection.connect()
            except OSError:
                return "refused", b"", ""
            try:
                # The server may respond and close before it has read the whole request (429).
                with suppress(OSError):
                    connection.request("POST", self.path, self.body, headers)
                response = connection.getresponse()
                return str(response.status), response.read(), str(response.headers).lower()
            except (OSError, HTTPException):
                return "lost", b"", ""


def dispatch_body(model: str, payload: object, **members: object) -> bytes:
    return json.dumps({"modelname": model, "payload": payload, **members}).encode()
