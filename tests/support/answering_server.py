"""A server that answers everything alike: what moto cannot say, and answers that are cut off."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answering:
    """``missing`` bytes of the body are announced and never sent."""

    status: int
    body: bytes
    kind: str = ""
    missing: int = 0
    url: str = ""
    asked: list[bytes] = field(default_factory=list)


@contextmanager
def answering(status: int, document: Any, kind: str = "", missing: int = 0) -> Iterator[Answering]:
    """``kind`` is an error's code, as AWS names it in a header."""
    answer = Answering(status, json.dumps(document).encode(), kind, missing)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer.asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer.body) + answer.missing))
            if answer.kind:
                self.send_header("x-amzn-ErrorType", answer.kind)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            """Nothing: pytest's output is no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        answer.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield answer
        finally:
            server.shutdown()
            thread.join()
