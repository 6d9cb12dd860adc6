"""The gateway without Lambda: ``python -m gateway.serve --port 8000``."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

# Chalice's layout: modules are imported from the project's folder.
sys.path.insert(0, str(Path(__file__).parent))

from asgi import DISCARD_TIMEOUT_S, Application
from chalicelib.options import Options

from sm.errors import StartError, error_body
from sm.server import logs

#: Seconds for a request's head to arrive, and for an idle connection to be kept.
HEAD_TIMEOUT_S, KEEP_ALIVE_S = 10.0, 5
MAX_HEAD_BYTES = 16_384
#: Half of the descriptors are for callers; the others are for S3, Triton and files.
MAX_CONNECTIONS = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
#: Seconds that a stopping gateway waits for its requests, beyond their own time limit.
STOP_MARGIN_S = 2


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, with limits for connections and for the time until a head has arrived."""

    head_timeout_s = HEAD_TIMEOUT_S
    _head_timer: asyncio.TimerHandle | None = None
    _is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse("503 Service Unavailable", "overloaded", "too many connections")
        else:
            self._watch_head()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        """Run a timer from the start of the connection, or a head's first byte, to the head's last byte."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(
                self.head_timeout_s, self._refuse, "408 Request Timeout", "request_timeout", "no request came"
            )

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def send_400_response(self, _msg: str) -> None:
        """Refuse a head that cannot be read, in the shape of all errors."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()
        elif len(self.conn.trailing_data[0]) > MAX_HEAD_BYTES:
            reason = f"the request's head is larger than {MAX_HEAD_BYTES:,} bytes"
            self._refuse("431 Request Header Fields Too Large", "too_large", reason, DISCARD_TIMEOUT_S)
        else:
            self._refuse("400 Bad Request", "bad_input", "the request is not HTTP/1.1", DISCARD_TIMEOUT_S)

    def _refuse(self, status: str, code: str, reason: str, discard_s: float = 0) -> None:
        """Send an error before there is a request, and close the connection.

        What the caller still sends is discarded for ``discard_s``: after a reset it might not see the answer.
        """
        self._is_refused = True
        self._stop_timer()
        if self.transport.is_closing():
            return
        body = json.dumps(error_body(reason, code), separators=(",", ":"))
        head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        if discard_s and self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(discard_s, self.transport.close)
        else:
            self.transport.close()


def configuration(options: Options, host: str, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        Application(options),
        host,
        port,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(options.timeout) + STOP_MARGIN_S,
    )


def main(arguments: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m gateway.serve", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="the port to listen on (%(default)s)")
    options = parser.parse_args(arguments)
    logs.configure("info")
    try:
        config = configuration(Options.read(os.environ), options.host, options.port)
    except StartError as error:
        return str(error)
    # uvicorn stops, then raises the signal again: it must not end the process before its files are removed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    uvicorn.Server(config).run()
    return None


if __name__ == "__main__":
    sys.exit(main())
