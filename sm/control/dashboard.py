"""``/dashboard/data``: the last hour of the box in numbers, for its dashboard and for ``sm top``."""

from __future__ import annotations

import http.client
import math
import socket
import zlib
from collections.abc import Callable
from pathlib import Path

from flask import Blueprint, Response, request

from sm.control.routes import limit_bodies
from sm.errors import BadInput, NotReady
from sm.http.messages import Answer
from sm.http.responses import respond
from sm.run_state import Box

#: For the control plane's answer to a worker.
CONTROL_TIMEOUT_S = 5.0
#: Larger answers are compressed if the caller accepts gzip: an hour of many models has megabytes.
MIN_COMPRESSED_BYTES = 2**16
JSON = "application/json"


def blueprint(read: Callable[[float], bytes]) -> Blueprint:
    """Create the route. ``read`` returns the JSON with the points after a Unix time."""
    routes = Blueprint("dashboard_data", __name__)
    limit_bodies(routes)

    @routes.get("/dashboard/data")
    def data() -> Response:
        content = read(_since(request.args.get("since", "0")))
        headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
        if len(content) >= MIN_COMPRESSED_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
            compressor = zlib.compressobj(1, wbits=31)
            content = compressor.compress(content) + compressor.flush()
            headers["Content-Encoding"] = "gzip"
        return respond(Answer(content, JSON, headers=headers))

    return routes


def _since(text: str) -> float:
    try:
        since = float(text)
    except ValueError:
        since = math.nan
    if not math.isfinite(since):
        raise BadInput("since must be a number: the Unix time of the last point that the caller has")
    return since


def control_plane_reader(box: Box) -> Callable[[float], bytes]:
    """Return a function that gets the points from the control plane, for workers without nginx."""

    def read(since: float) -> bytes:
        connection = SocketConnection(box.control_socket)
        try:
            connection.request("GET", f"/dashboard/data?since={since!r}")
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            raise NotReady("the control plane does not answer") from None
        finally:
            connection.close()
        if answer.status != 200:
            raise NotReady("the control plane does not answer")
        return content

    return read


class SocketConnection(http.client.HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, path: Path) -> None:
        super().__init__("box", timeout=CONTROL_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
