"""HTTP/1.1 at the public port, case by case: what RFC 9112 allows is served, what it forbids is refused in JSON.

A request whose end two servers read differently is how a caller smuggles one (RFC 9112, section 11.2): every
such one is refused and its connection closed.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

import pytest

from tests.support.boxes import RunningBox
from tests.support.raw_http import exchange
from tests.support.tritons import ECHO_BODY

SIZE = len(ECHO_BODY)
JSON = b"Content-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n" % SIZE
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CLOSE = b"Host: box\r\nConnection: close\r\n\r\n"
ONE_CHUNK = b"%x\r\n%b\r\n0\r\n\r\n" % (SIZE, ECHO_BODY)


class Case(NamedTuple):
    request: bytes
    statuses: list[int]
    #: True if the connection may be used again.
    kept: bool = True
    #: In the JSON of a refusal.
    code: str = "bad_input"


def post(headers: bytes, body: bytes, target: bytes = b"/invocations", version: bytes = b"HTTP/1.1") -> bytes:
    return b"POST %b %b\r\nHost: box\r\n%b%b\r\n%b" % (target, version, JSON, headers, body)


GOOD = post(LENGTH, ECHO_BODY)
CASES = {
    "one request": Case(GOOD, [200]),
    "two pipelined requests": Case(GOOD * 2, [200, 200]),
    "100-continue": Case(post(LENGTH + b"Expect: 100-continue\r\n", ECHO_BODY), [100, 200]),
    "another expectation": Case(post(LENGTH + b"Expect: 200-ok\r\n", ECHO_BODY), [200]),
    "chunks": Case(post(CHUNKED, ONE_CHUNK), [200]),
    "chunk extensions": Case(post(CHUNKED, ONE_CHUNK.replace(b"\r\n", b';a="b";c\r\n', 1)), [200]),
    "trailers": Case(post(CHUNKED, ONE_CHUNK.removesuffix(b"\r\n") + b"X-Trailer: 1\r\n\r\n"), [200]),
    "Chunked in capitals": Case(post(CHUNKED.replace(b"chunked", b"CHUNKED"), ONE_CHUNK), [200]),
    "absolute form": Case(post(LENGTH, ECHO_BODY, b"http://box/invocations"), [200]),
    "an empty line first": Case(b"\r\n" + GOOD, [200]),
    "HTTP/1.0 without Host": Case(
        b"POST /invocations HTTP/1.0\r\n" + JSON + LENGTH + b"\r\n" + ECHO_BODY, [200], False
    ),
    "an offer of h2c": Case(
        post(LENGTH + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n", ECHO_BODY), [200]
    ),
    "no Host": Case(GOOD.replace(b"Host: box\r\n", b""), [400], False),
    "two Hosts": Case(GOOD.replace(b"Host: box\r\n", b"Host: box\r\nHost: other\r\n"), [400], False),
    "Content-Length and chunks": Case(post(LENGTH + CHUNKED, ONE_CHUNK), [400], False),
    "two lengths": Case(post(LENGTH + b"Content-Length: 5\r\n", ECHO_BODY), [400], False),
    "the same length twice": Case(post(LENGTH * 2, ECHO_BODY), [400], False),
    "a length with a sign": Case(post(b"Content-Length: +%d\r\n" % SIZE, ECHO_BODY), [400], False),
    "a list of lengths": Case(post(b"Content-Length: %d, %d\r\n" % (SIZE, SIZE), ECHO_BODY), [400], False),
    "an unknown coding": Case(
        post(b"Transfer-Encoding: xchunked\r\n", ONE_CHUNK), [501], False, "not_implemented"
    ),
    "two codings": Case(
        post(b"Transfer-Encoding: gzip, chunked\r\n", ONE_CHUNK), [501], False, "not_implemented"
    ),
    "chunked twice": Case(post(CHUNKED * 2, ONE_CHUNK), [400], False),
    "chunks in HTTP/1.0": Case(post(CHUNKED, ONE_CHUNK, version=b"HTTP/1.0"), [400], False),
    "a chunk size that is not hexadecimal": Case(post(CHUNKED, b"0x5\r\nabcde\r\n0\r\n\r\n"), [400], False),
    "a chunk size of 2^64": Case(post(CHUNKED, b"10000000000000000\r\na"), [400], False),
    "a chunk that is longer than its size": Case(post(CHUNKED, b"2\r\nabc\r\n0\r\n\r\n"), [400], False),
    "a folded header": Case(post(LENGTH + b"X-Folded: a\r\n b\r\n", ECHO_BODY), [400], False),
    "a blank before the colon": Case(post(LENGTH.replace(b":", b" :"), ECHO_BODY), [400], False),
    "a header without a colon": Case(post(LENGTH + b"Nonsense\r\n", ECHO_BODY), [200]),
    "NUL in a header": Case(post(LENGTH + b"X-Nul: a\0b\r\n", ECHO_BODY), [400], False),
    "a version that does not exist": Case(post(LENGTH, ECHO_BODY, version=b"HTTP/3.0"), [505], False),
    "HTTP/0.9, whose answer has no status": Case(b"GET /ping\r\n", [], False),
    "a method in small letters": Case(GOOD.replace(b"POST", b"post", 1), [400], False),
    "CONNECT": Case(b"CONNECT box:443 HTTP/1.1\r\nHost: box\r\n\r\n", [400], False),
    "HEAD": Case(b"HEAD /v2/models/echo HTTP/1.1\r\nHost: box\r\n\r\n", [200]),
    "TRACE": Case(b"TRACE / HTTP/1.1\r\n" + CLOSE, [405], False, "method_not_allowed"),
    "no HTTP": Case(b"nonsense\r\n\r\n", [400], False),
    "a negative length": Case(post(b"Content-Length: -5\r\n", b""), [400], False),
    "a long URL": Case(b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + CLOSE, [414], False),
    "a long header": Case(b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n" + CLOSE, [431], False),
    "a path outside the root": Case(b"GET /../../etc/passwd HTTP/1.1\r\n" + CLOSE, [400], False),
    "a path of nginx's own": Case(b"GET /.error HTTP/1.1\r\n" + CLOSE, [404], False, "not_found"),
}


def send(box: RunningBox, request: bytes) -> tuple[list[int], bool, bytes]:
    """Send bytes, then a request for /ping; return the statuses before its answer, whether it had one, and all answers."""
    last = b"GET /ping HTTP/1.1\r\nHost: box\r\nConnection: close\r\nX-Request-Id: last\r\n\r\n"
    answers = exchange(box.port, request + last)
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answers)]
    kept = b"X-Request-Id: last" in answers
    return (statuses[:-1] if kept else statuses), kept, answers


@pytest.mark.parametrize("name", CASES)
def test_a_request_is_served_or_refused_as_the_rfc_says(small_box: RunningBox, name: str) -> None:
    case = CASES[name]
    statuses, kept, answers = send(small_box, case.request)
    assert (statuses, kept) == (case.statuses, case.kept)
    if any(status >= 400 for status in statuses):
        head, _, body = answers.partition(b"\r\n\r\n")
        error = json.loads(body)
        assert error["code"] == case.code
        assert f"X-Request-Id: {error['request_id']}".encode() in head.splitlines()
