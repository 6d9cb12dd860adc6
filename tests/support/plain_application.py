"""A WSGI application that responds in each way that WSGI allows, chosen by the path."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

StartResponse = Callable[..., Any]


def application(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    """Respond in the way that the first part of the path names."""
    name = environ["PATH_INFO"].strip("/").partition("/")[0]
    return ANSWERS.get(name, describe)(environ, start_response)


def describe(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    """Return the request line, headers, body length and body hash as JSON."""
    body = environ["wsgi.input"].read()
    description = {
        "line": [environ[name] for name in ("REQUEST_METHOD", "RAW_URI", "QUERY_STRING", "SERVER_PROTOCOL")],
        "headers": {
            name: environ[name] for name in sorted(environ) if name.startswith(("HTTP_", "CONTENT_"))
        },
        "body": [len(body), hashlib.sha256(body).hexdigest()],
    }
    content = json.dumps(description).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(content)))])
    return [content]


def stream(_environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    """Return chunks without a Content-Length."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    return (f"chunk {number}\n".encode() * 1000 for number in range(20))


def empty(_environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    start_response("204 No Content", [])
    return []


def refuse(_environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    """Respond without reading the body."""
    start_response("413 Content Too Large", [("Content-Length", "3")])
    return [b"no\n"]


def read_some(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    content = environ["wsgi.input"].read(10)
    start_response("200 OK", [("Content-Length", str(len(content)))])
    return [content]


def raise_before(_environ: dict[str, Any], _start_response: StartResponse) -> Iterable[bytes]:
    raise ValueError("before the answer")


def raise_after(_environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "100")])
    yield b"half"
    raise ValueError("in the answer")


def exit_process(_environ: dict[str, Any], _start_response: StartResponse) -> Iterable[bytes]:
    sys.exit(7)


def split(_environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    """Return a header value with a line break, which would inject a second header."""
    start_response("200 OK", [("X-Note", "one\r\nX-Other: two")])
    return [b""]


def send_megabytes(_environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", str(3 * 2**20))])
    return [b"m" * 2**20] * 3


ANSWERS: dict[str, Callable[[dict[str, Any], StartResponse], Iterable[bytes]]] = {
    "stream": stream,
    "empty": empty,
    "refuse": refuse,
    "read_some": read_some,
    "raise_before": raise_before,
    "raise_after": raise_after,
    "leave": exit_process,
    "split": split,
    "megabytes": send_megabytes,
}
