"""The worker behind nginx sends the same responses to the same bytes as gunicorn's own gthread."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.boxes import wait_until

pytestmark = pytest.mark.core

RESPONSE_TIMEOUT_S = 20.0
START_TIMEOUT_S = 60.0
#: The pause between two pieces of a request, so that the server reads them with separate calls.
PIECE_PAUSE_S = 0.05
OWN_WORKER, GTHREAD, ERROR_RESPONSES = (
    "sm.server.thread_worker.Worker",
    "gunicorn.workers.gthread.ThreadWorker",
    # gthread with the contract's error responses: what runs with TRIREME_WORKER_CLASS=gthread.
    "sm.server.thread_worker.DirectWorker",
)
#: Headers and ids that differ from one response to the next.
CHANGING_PARTS = re.compile(rb"(?m)^(?:Date|X-Request-Id): [^\r]*\r\n|\"request_id\":\"[0-9a-f]*\"")


@dataclass(frozen=True)
class CallerBytes:
    """The pieces that a caller sends, and whether it then closes its half of the connection."""

    pieces: tuple[bytes, ...]
    half_close: bool = False


def sending(*pieces: bytes, half_close: bool = False) -> CallerBytes:
    return CallerBytes(pieces, half_close)


def post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = (b"POST /%s HTTP/1.1" % path, b"Host: box", b"Content-Length: %d" % len(body), *headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def get(path: bytes, *headers: bytes, version: bytes = b"1.1", method: bytes = b"GET") -> bytes:
    return b"\r\n".join((b"%s /%s HTTP/%s" % (method, path, version), b"Host: box", *headers)) + b"\r\n\r\n"


def chunked(*chunks: bytes, path: bytes = b"a", end: bytes = b"0\r\n\r\n") -> bytes:
    header = b"POST /%s HTTP/1.1\r\nHost: box\r\nTransfer-Encoding: chunked\r\n\r\n" % path
    return header + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + end


LARGE = bytes(range(256)) * 2**13
GOOD_REQUESTS = {
    "GET": sending(get(b"a?b=c%20d")),
    "HEAD": sending(get(b"a", method=b"HEAD")),
    "OPTIONS": sending(get(b"a", method=b"OPTIONS")),
    "a method of its own": sending(get(b"a", method=b"BREW")),
    "POST": sending(post(b"a", b"hello")),
    "POST in pieces": sending(*(post(b"a", b"hello")[at : at + 20] for at in range(0, 80, 20))),
    "POST without content": sending(post(b"a", b"")),
    "2 MiB": sending(post(b"a", LARGE)),
    "chunked": sending(chunked(b"one", b"two", LARGE)),
    "chunked with trailers": sending(chunked(b"one", end=b"0\r\nX-Sum: 1\r\n\r\n")),
    "chunked in pieces": sending(chunked(b"one"), b"", chunked(b"two")[-11:]),
    "Expect: 100-continue": sending(post(b"a", b"hello", b"Expect: 100-continue")),
    "Expect: 100-continue, body later": sending(post(b"a", b"hello", b"Expect: 100-continue")[:-5], b"hello"),
    "HTTP/1.0": sending(get(b"a", version=b"1.0")),
    "HTTP/1.0 that keeps its connection": sending(get(b"a", b"Connection: keep-alive", version=b"1.0")),
    "Connection: close": sending(get(b"a", b"Connection: close")),
    "an absolute URI": sending(b"GET http://box/a?b HTTP/1.1\r\nHost: box\r\n\r\n"),
    "half closed behind the request": sending(post(b"a", b"hello"), half_close=True),
    "a header twice": sending(get(b"a", b"X-A: 1", b"X-A: 2")),
    "a header with an underscore": sending(get(b"a", b"X_A: 1")),
    "latin-1 in a header": sending(get(b"a", b"X-A: \xe4")),
    "pipelined": sending(post(b"a", b"one") + post(b"a", b"two")),
    "garbage behind the request": sending(post(b"a", b"one") + b"\0\1\2"),
    "a stream": sending(get(b"stream")),
    "a stream for HTTP/1.0": sending(get(b"stream", version=b"1.0")),
    "an empty answer": sending(get(b"empty")),
    "megabytes": sending(get(b"megabytes")),
}
#: gthread closes at once, and the reset that follows may cut its response. The worker behind nginx waits
#: until nginx has the response and hangs up.
UNREAD_BODIES = {
    "a body of which little is read": sending(post(b"read_some", LARGE)),
    "a body that is not read": sending(post(b"refuse", LARGE)),
    "a chunked body that is not read": sending(chunked(LARGE, path=b"refuse")),
}
BAD_REQUESTS = {
    "nothing": sending(b"", half_close=True),
    "half a line": sending(b"GET /a", half_close=True),
    "half a head": sending(b"GET /a HTTP/1.1\r\nHost: b", half_close=True),
    "half a body": sending(post(b"a", b"hello")[:-2], half_close=True),
    "half a chunk": sending(chunked(b"hello", end=b"")[:-4], half_close=True),
    "no last chunk": sending(chunked(b"hello", end=b""), half_close=True),
    "no size of a chunk": sending(chunked(end=b"zz\r\nhello\r\n0\r\n\r\n")),
    "a negative size of a chunk": sending(chunked(end=b"-5\r\nhello\r\n0\r\n\r\n")),
    "garbage": sending(b"\0\1\2\3\r\n\r\n"),
    "a TLS hello": sending(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 40 + b"\r\n\r\n"),
    "HTTP/2's preface": sending(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/3.0": sending(get(b"a", version=b"3.0")),
    "no version": sending(b"GET /a\r\n\r\n"),
    "a lower-case method": sending(get(b"a", method=b"get")),
    "a space before the colon": sending(get(b"a", b"X-A : 1")),
    "a folded header": sending(get(b"a", b"X-A: 1\r\n 2")),
    "no colon": sending(get(b"a", b"X-A")),
    "a NUL in a header": sending(get(b"a", b"X-A: \0")),
    "two lengths": sending(get(b"a", b"Content-Length: 1", b"Content-Length: 2") + b"xx"),
    "a negative length": sending(get(b"a", b"Content-Length: -1")),
    "a length in words": sending(get(b"a", b"Content-Length: five")),
    "a length and chunks": sending(post(b"a", b"hello", b"Transfer-Encoding: chunked")),
    "an unknown coding": sending(get(b"a", b"Transfer-Encoding: rot13")),
    "chunks within chunks": sending(get(b"a", b"Transfer-Encoding: chunked, chunked")),
    "a URL that is too long": sending(get(b"a" * 5000)),
    "a header that is too long": sending(get(b"a", b"X-A: " + b"x" * 9000)),
    "too many headers": sending(get(b"a", *(b"X-%d: 1" % number for number in range(120)))),
    "a failure before the answer": sending(get(b"raise_before")),
    "a failure in the answer": sending(get(b"raise_after")),
    "a header that would be two": sending(get(b"split")),
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The sockets of one gunicorn with each worker class, started with the options that it has behind nginx."""
    folder = tmp_path_factory.mktemp("workers")
    sockets = {
        worker_class: folder / f"{number}.sock"
        for number, worker_class in enumerate((OWN_WORKER, GTHREAD, ERROR_RESPONSES))
    }
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "gunicorn", "tests.support.plain_application:application"),
                *(
                    "--worker-class",
                    worker_class,
                    "--threads",
                    "4",
                    "--keep-alive",
                    "0",
                    "--bind",
                    f"unix:{path}",
                ),
                *("--worker-tmp-dir", str(folder), "--no-control-socket", "--graceful-timeout", "1"),
            ],
            cwd=HERE,
            stderr=subprocess.DEVNULL,
        )
        for worker_class, path in sockets.items()
    ]
    try:
        for path in sockets.values():
            wait_until_ready(path)
        yield sockets
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(START_TIMEOUT_S)


def wait_until_ready(path: Path) -> None:
    def is_ready() -> bool:
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return exchange(path, GOOD_REQUESTS["GET"]).startswith(b"HTTP/1.1 200")
        return False

    wait_until(is_ready, START_TIMEOUT_S, f"a worker at {path}")


def exchange(path: Path, request: CallerBytes) -> bytes:
    """Send the pieces, and return everything received until the connection ends."""
    response = b""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(RESPONSE_TIMEOUT_S)
        caller.connect(str(path))
        try:
            for index, piece in enumerate(request.pieces):
                if index:
                    time.sleep(PIECE_PAUSE_S)
                caller.sendall(piece)
            if request.half_close:
                caller.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # The server refused before it had received everything.
        try:
            while received := caller.recv(2**16):
                response += received
        except ConnectionResetError:
            response += b"<reset>"
    return CHANGING_PARTS.sub(b"", response)


@pytest.mark.parametrize("name", GOOD_REQUESTS)
def test_a_good_request_gets_the_same_response(workers: dict[str, Path], name: str) -> None:
    expected = exchange(workers[GTHREAD], GOOD_REQUESTS[name])
    assert exchange(workers[OWN_WORKER], GOOD_REQUESTS[name]) == expected
    assert exchange(workers[ERROR_RESPONSES], GOOD_REQUESTS[name]) == expected


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_gets_the_same_status_with_the_contracts_error(
    workers: dict[str, Path], name: str
) -> None:
    expected = exchange(workers[ERROR_RESPONSES], BAD_REQUESTS[name])
    assert exchange(workers[OWN_WORKER], BAD_REQUESTS[name]) == expected
    gthread_response = exchange(workers[GTHREAD], BAD_REQUESTS[name])
    assert status_of(gthread_response) == status_of(expected)


@pytest.mark.parametrize("name", UNREAD_BODIES)
def test_a_response_sent_before_the_body_was_read_is_never_cut_short(
    workers: dict[str, Path], name: str
) -> None:
    own_response = exchange(workers[OWN_WORKER], UNREAD_BODIES[name])
    assert own_response.count(b"\r\n\r\n") == 1
    for worker_class in (GTHREAD, ERROR_RESPONSES):
        assert own_response.startswith(
            exchange(workers[worker_class], UNREAD_BODIES[name]).removesuffix(b"<reset>")
        )


def test_an_application_that_exits_ends_gthreads_process_but_not_our_worker(
    workers: dict[str, Path],
) -> None:
    assert exchange(workers[OWN_WORKER], sending(get(b"leave"))).startswith(b"HTTP/1.1 500 ")
    assert exchange(workers[GTHREAD], sending(get(b"leave"))) == b""
    # gunicorn's master starts another worker.
    wait_until_ready(workers[GTHREAD])


def status_of(response: bytes) -> bytes:
    return response[:12]
