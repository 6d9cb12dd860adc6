"""A server that gives every request the same response: errors that moto lacks, and truncated bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from werkzeug import Request, Response

from tests.support.http_server import serving


@dataclass
class FixedResponse:
    """The server's address, and the requests so far."""

    url: str = ""
    request_bodies: list[bytes] = field(default_factory=list)


@contextmanager
def server_with_fixed_response(
    status: int, document: Any, error_type: str = "", missing_bytes: int = 0
) -> Iterator[FixedResponse]:
    """Run the server.

    Args:
        status: The response's status.
        document: Its JSON body.
        error_type: The value of AWS's header ``x-amzn-ErrorType``.
        missing_bytes: Bytes of the body that are announced and never sent.
    """
    server, body = FixedResponse(), json.dumps(document).encode()

    def respond(request: Request) -> Response:
        server.request_bodies.append(request.get_data())
        headers = {"Content-Length": str(len(body) + missing_bytes)}
        headers |= {"x-amzn-ErrorType": error_type} if error_type else {}
        return Response([body], status, headers, content_type="application/json")

    with serving(respond) as server.url:
        yield server
