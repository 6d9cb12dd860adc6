"""A server that gives every request the same response: errors that moto lacks, and truncated bodies."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FixedResponse:
    """The response, and the requests so far. ``missing_bytes`` of the body are announced and never sent."""

    status: int
    body: bytes
    error_type: str = ""
    missing_bytes: int = 0
    url: str = ""
    request_bodies: list[bytes] = field(default_factory=list)


@contextmanager
def server_with_fixed_response(
    status: int, document: Any, error_type: str = "", missing_bytes: int = 0
) -> Iterator[FixedResponse]:
    """Run the server. ``error_type`` is the value of AWS's header ``x-amzn-ErrorType``."""
    response = FixedResponse(status, json.dumps(document).encode(), error_type, missing_bytes)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            response.request_bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(response.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(response.body) + response.missing_bytes))
            if response.error_type:
                self.send_header("x-amzn-ErrorType", response.error_type)
            self.end_headers()
            self.wfile.write(response.body)

        def log_message(self, *_: object) -> None:
            """Keep pytest's output free of request logs."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        response.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield response
        finally:
            server.shutdown()
            thread.join()
