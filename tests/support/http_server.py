"""Serve a function of werkzeug's requests on loopback: the stand-ins of the tests."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from werkzeug import Request, Response
from werkzeug.serving import WSGIRequestHandler, make_server

Respond = Callable[[Request], Response]


class QuietHandler(WSGIRequestHandler):
    """Keeps pytest's output free of request logs."""

    wbufsize = -1  # send a response in one packet: a second one would wait 40 ms for a delayed ACK

    def log(self, type: str, message: str, *args: object) -> None:
        pass

    def connection_dropped(self, error: BaseException, environ: object = None) -> None:
        self.close_connection = True

    def finish(self) -> None:
        # The caller may have gone before the response is written.
        with contextlib.suppress(ConnectionError), contextlib.closing(self.rfile):
            super().finish()


@contextmanager
def serving(respond: Respond, host: str = "127.0.0.1", tls: tuple[Path, Path] | None = None) -> Iterator[str]:
    """Run a server with a thread for each request; the block gets its URL.

    A ConnectionError in ``respond`` closes the connection without a response. ``host`` may be ``unix://PATH``.
    ``tls`` are the files of a certificate for localhost and of its key.
    """
    application = Request.application(respond)
    context = tls and (str(tls[0]), str(tls[1]))
    server = make_server(
        host, 0, application, threaded=True, request_handler=QuietHandler, ssl_context=context
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"{'https://localhost' if tls else 'http://127.0.0.1'}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


@dataclass
class FixedResponse:
    """The server's address, and the requests so far."""

    url: str = ""
    request_bodies: list[bytes] = field(default_factory=list)


@contextmanager
def server_with_fixed_response(
    status: int, document: Any, error_type: str = "", missing_bytes: int = 0
) -> Iterator[FixedResponse]:
    """Give every request the same JSON, of which ``missing_bytes`` are announced and never sent.

    ``error_type`` is the value of AWS's header ``x-amzn-ErrorType``.
    """
    server, body = FixedResponse(), json.dumps(document).encode()
    headers = {"Content-Length": str(len(body) + missing_bytes), "Content-Type": "application/json"}
    headers |= {"x-amzn-ErrorType": error_type} if error_type else {}

    def respond(request: Request) -> Response:
        server.request_bodies.append(request.get_data())
        return Response([body], status, headers)

    with serving(respond) as server.url:
        yield server
