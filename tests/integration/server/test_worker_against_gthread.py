"""The worker behind nginx against gunicorn's own gthread: the same answers to the same bytes."""

from __future__ import annotations

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

ANSWER_TIMEOUT_S = 20.0
START_TIMEOUT_S = 60.0
#: Between two pieces of a request, so that they come by different calls of the server.
PIECE_PAUSE_S = 0.05
OWN, GTHREAD, ERROR_PAGES = (
    "sm.server.thread_worker.Worker",
    "gunicorn.workers.gthread.ThreadWorker",
    # gthread with the contract's error responses: what runs with TRIREME_WORKER_CLASS=gthread.
    "sm.server.error_responses.Worker",
)
#: What differs from one answer to the next.
CHANGING = re.compile(rb"(?m)^(?:Date|X-Request-Id): [^\r]*\r\n|\"request_id\":\"[0-9a-f]*\"")


@dataclass(frozen=True)
class Sent:
    """What a caller sends, in pieces, and whether it then closes its half of the connection."""

    pieces: tuple[bytes, ...]
    half_close: bool = False


def sent(*pieces: bytes, half_close: bool = False) -> Sent:
    return Sent(pieces, half_close)


def post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = (b"POST /%s HTTP/1.1" % path, b"Host: box", b"Content-Length: %d" % len(body), *headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def get(path: bytes, *headers: bytes, version: bytes = b"1.1", method: bytes = b"GET") -> bytes:
    return b"\r\n".join((b"%s /%s HTTP/%s" % (method, path, version), b"Host: box", *headers)) + b"\r\n\r\n"


def chunked(*chunks: bytes, path: bytes = b"a", end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"POST /%s HTTP/1.1\r\nHost: box\r\nTransfer-Encoding: chunked\r\n\r\n" % path
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + end


LARGE = bytes(range(256)) * 2**13
GOOD = {
    "GET": sent(get(b"a?b=c%20d")),
    "HEAD": sent(get(b"a", method=b"HEAD")),
    "OPTIONS": sent(get(b"a", method=b"OPTIONS")),
    "a method of its own": sent(get(b"a", method=b"BREW")),
    "POST": sent(post(b"a", b"hello")),
    "POST in pieces": sent(*(post(b"a", b"hello")[at : at + 20] for at in range(0, 80, 20))),
    "POST without content": sent(post(b"a", b"")),
    "2 MiB": sent(post(b"a", LARGE)),
    "chunked": sent(chunked(b"one", b"two", LARGE)),
    "chunked with trailers": sent(chunked(b"one", end=b"0\r\nX-Sum: 1\r\n\r\n")),
    "chunked in pieces": sent(chunked(b"one"), b"", chunked(b"two")[-11:]),
    "Expect: 100-continue": sent(post(b"a", b"hello", b"Expect: 100-continue")),
    "Expect: 100-continue, body later": sent(post(b"a", b"hello", b"Expect: 100-continue")[:-5], b"hello"),
    "HTTP/1.0": sent(get(b"a", version=b"1.0")),
    "HTTP/1.0 that keeps its connection": sent(get(b"a", b"Connection: keep-alive", version=b"1.0")),
    "Connection: close": sent(get(b"a", b"Connection: close")),
    "an absolute URI": sent(b"GET http://box/a?b HTTP/1.1\r\nHost: box\r\n\r\n"),
    "half closed behind the request": sent(post(b"a", b"hello"), half_close=True),
    "a header twice": sent(get(b"a", b"X-A: 1", b"X-A: 2")),
    "a header with an underscore": sent(get(b"a", b"X_A: 1")),
    "latin-1 in a header": sent(get(b"a", b"X-A: \xe4")),
    "pipelined": sent(post(b"a", b"one") + post(b"a", b"two")),
    "garbage behind the request": sent(post(b"a", b"one") + b"\0\1\2"),
    "a stream": sent(get(b"stream")),
    "a stream for HTTP/1.0": sent(get(b"stream", version=b"1.0")),
    "an empty answer": sent(get(b"empty")),
    "megabytes": sent(get(b"megabytes")),
}
#: gthread closes at once, and the reset that follows may take the answer back. The worker behind nginx waits
#: until nginx has the answer and hangs up.
NOT_READ = {
    "a body of which little is read": sent(post(b"read_some", LARGE)),
    "a body that is not read": sent(post(b"refuse", LARGE)),
    "a chunked body that is not read": sent(chunked(LARGE, path=b"refuse")),
}
BAD = {
    "nothing": sent(b"", half_close=True),
    "half a line": sent(b"GET /a", half_close=True),
    "half a head": sent(b"GET /a HTTP/1.1\r\nHost: b", half_close=True),
    "half a body": sent(post(b"a", b"hello")[:-2], half_close=True),
    "half a chunk": sent(chunked(b"hello", end=b"")[:-4], half_close=True),
    "no last chunk": sent(chunked(b"hello", end=b""), half_close=True),
    "no size of a chunk": sent(chunked(end=b"zz\r\nhello\r\n0\r\n\r\n")),
    "a negative size of a chunk": sent(chunked(end=b"-5\r\nhello\r\n0\r\n\r\n")),
    "garbage": sent(b"\0\1\2\3\r\n\r\n"),
    "a TLS hello": sent(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 40 + b"\r\n\r\n"),
    "HTTP/2's preface": sent(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/3.0": sent(get(b"a", version=b"3.0")),
    "no version": sent(b"GET /a\r\n\r\n"),
    "a lower-case method": sent(get(b"a", method=b"get")),
    "a space before the colon": sent(get(b"a", b"X-A : 1")),
    "a folded header": sent(get(b"a", b"X-A: 1\r\n 2")),
    "no colon": sent(get(b"a", b"X-A")),
    "a NUL in a header": sent(get(b"a", b"X-A: \0")),
    "two lengths": sent(get(b"a", b"Content-Length: 1", b"Content-Length: 2") + b"xx"),
    "a negative length": sent(get(b"a", b"Content-Length: -1")),
    "a length in words": sent(get(b"a", b"Content-Length: five")),
    "a length and chunks": sent(post(b"a", b"hello", b"Transfer-Encoding: chunked")),
    "an unknown coding": sent(get(b"a", b"Transfer-Encoding: rot13")),
    "chunks within chunks": sent(get(b"a", b"Transfer-Encoding: chunked, chunked")),
    "a URL that is too long": sent(get(b"a" * 5000)),
    "a header that is too long": sent(get(b"a", b"X-A: " + b"x" * 9000)),
    "too many headers": sent(get(b"a", *(b"X-%d: 1" % number for number in range(120)))),
    "a failure before the answer": sent(get(b"raise_before")),
    "a failure in the answer": sent(get(b"raise_after")),
    "a header that would be two": sent(get(b"split")),
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A gunicorn with each worker, set as behind nginx; their sockets."""
    folder = tmp_path_factory.mktemp("workers")
    sockets = {kind: folder / f"{number}.sock" for number, kind in enumerate((OWN, GTHREAD, ERROR_PAGES))}
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "gunicorn", "tests.support.plain_application:application"),
                *("--worker-class", kind, "--threads", "4", "--keep-alive", "0", "--bind", f"unix:{path}"),
                *("--worker-tmp-dir", str(folder), "--no-control-socket", "--graceful-timeout", "1"),
            ],
            cwd=HERE,
            stderr=subprocess.DEVNULL,
        )
        for kind, path in sockets.items()
    ]
    try:
        for path in sockets.values():
            wait_for(path)
        yield sockets
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(START_TIMEOUT_S)


def wait_for(path: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        try:
            if ask(path, GOOD["GET"]).startswith(b"HTTP/1.1 200"):
                return
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.05)
    raise AssertionError(f"no worker at {path}")


def ask(path: Path, request: Sent) -> bytes:
    """All that comes back until the connection ends."""
    answer = b""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(ANSWER_TIMEOUT_S)
        caller.connect(str(path))
        try:
            for number, piece in enumerate(request.pieces):
                if number:
                    time.sleep(PIECE_PAUSE_S)
                caller.sendall(piece)
            if request.half_close:
                caller.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before it had all
        try:
            while content := caller.recv(2**16):
                answer += content
        except ConnectionResetError:
            answer += b"<reset>"
    return CHANGING.sub(b"", answer)


@pytest.mark.parametrize("name", GOOD)
def test_a_good_request_has_the_same_answer(workers: dict[str, Path], name: str) -> None:
    expected = ask(workers[GTHREAD], GOOD[name])
    assert ask(workers[OWN], GOOD[name]) == expected
    assert ask(workers[ERROR_PAGES], GOOD[name]) == expected


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_has_the_same_answer_but_for_the_error_page(
    workers: dict[str, Path], name: str
) -> None:
    expected = ask(workers[ERROR_PAGES], BAD[name])
    assert ask(workers[OWN], BAD[name]) == expected
    theirs = ask(workers[GTHREAD], BAD[name])
    assert status(theirs) == status(expected)


@pytest.mark.parametrize("name", NOT_READ)
def test_an_answer_without_the_body_read_is_the_same_but_never_cut_short(
    workers: dict[str, Path], name: str
) -> None:
    own = ask(workers[OWN], NOT_READ[name])
    assert own.count(b"\r\n\r\n") == 1
    for kind in (GTHREAD, ERROR_PAGES):
        assert own.startswith(ask(workers[kind], NOT_READ[name]).removesuffix(b"<reset>"))


def test_an_application_that_leaves_ends_gthreads_process_and_not_the_workers(
    workers: dict[str, Path],
) -> None:
    assert ask(workers[OWN], sent(get(b"leave"))).startswith(b"HTTP/1.1 500 ")
    assert ask(workers[GTHREAD], sent(get(b"leave"))) == b""
    # gunicorn's master starts another one.
    wait_for(workers[GTHREAD])


def status(answer: bytes) -> bytes:
    return answer[:12]
