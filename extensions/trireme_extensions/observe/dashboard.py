"""The dashboard: its page, the page's files, and its numbers."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flask import Blueprint, Response, request

from sm.control.pages import page_files, send
from sm.errors import BadInput
from sm.http.media_types import RouteTypes, negotiate
from sm.http.messages import JSON, Answer
from sm.http.responses import respond

FOLDER = Path(__file__).with_name("page")
#: Larger answers are compressed if the caller accepts gzip: an hour of many models has megabytes.
MIN_COMPRESSED_BYTES = 2**16
#: The media types of its numbers.
TYPES = RouteTypes((), (JSON,))


def blueprint(read: Callable[[float], bytes]) -> Blueprint:
    """Create the routes. ``read`` returns the JSON with the points after a Unix time."""
    routes = Blueprint("dashboard", __name__)
    routes.add_url_rule("/dashboard", "page", partial(send, FOLDER / "dashboard.html"))
    for name, path in page_files(FOLDER).items():
        routes.add_url_rule(f"/page/{name}", name.replace(".", "-"), partial(send, path))

    @routes.get("/dashboard/data")
    def data() -> Response:
        negotiate(request.headers.get("Accept", ""), TYPES.gives)
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
