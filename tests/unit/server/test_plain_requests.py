"""A worker reads the head that nginx writes itself, and as gunicorn reads it; all else is gunicorn's."""

from __future__ import annotations

import io
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from gunicorn.config import Config
from gunicorn.http.parser import RequestParser
from gunicorn.http.wsgi import create

from sm.http.messages import Answer
from sm.http.responses import HEADERS_KEY
from sm.router.wsgi import read_headers, send
from sm.server.thread_worker import PLAIN_FIELDS, CallerConnection, Worker, read_plain

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

HEAD = "POST /invocations HTTP/1.1\r\nConnection: close\r\nHost: box:8080\r\nContent-Length: 4\r\n"
#: Variables that nothing reads on the way of an invocation, or that are the server's own.
UNREAD = frozenset("SERVER_NAME SERVER_PORT SERVER_SOFTWARE".split())  # noqa: SIM905


def environ_of_gunicorn(head: bytes) -> dict[str, Any]:
    with socket.socket() as unused:
        request = next(RequestParser(Config(), iter([head]), ""))
        return dict(create(request, unused, "", "/run/data.sock", Config())[1])


@pytest.mark.parametrize(
    "extra",
    [
        "",
        "Content-Type: application/json; charset=utf-8\r\nX-Trireme-Start: 1.5\r\n",
        "Accept: */*\r\nX-Amzn-SageMaker-Custom-Attributes: a=b: c;d=\xe9\r\nX_1-a: 2\r\n".replace(
            "X_1", "X1"
        ),
        "Content-Encoding: gzip\r\nContent-Language: de\r\n",
    ],
)
@pytest.mark.parametrize("query", ["", "?", "?modelname=resnet&top=%20a/b?c"])
def test_a_plain_head_is_read_as_gunicorn_reads_it(query: str, extra: str) -> None:
    head = f"{HEAD}{extra}\r\n".replace("/invocations", f"/invocations{query}").encode("latin-1")
    plain = read_plain(head + b"body")
    assert plain is not None
    environ, expected = plain.environ, environ_of_gunicorn(head + b"body")
    assert (plain.length, plain.body) == (4, b"body")
    assert environ[HEADERS_KEY] == read_headers(expected)
    strings = {name: value for name, value in expected.items() if isinstance(value, str)}
    assert {name: environ.get(name) for name in strings.keys() - UNREAD} == {
        name: value for name, value in strings.items() if name not in UNREAD
    }


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace("POST", "GET"),
        HEAD.replace("/invocations", "/%69nvocations"),
        HEAD.replace("/invocations", "/invocations#a"),
        HEAD.replace("/invocations", "/invocations?a b"),
        HEAD.replace("1.1", "1.0"),
        HEAD.replace("Content-Length: 4\r\n", ""),
        HEAD.replace(": 4", ": +4"),
        HEAD.replace(": 4", ": \xb2"),
        f"{HEAD}Content-Length: 5\r\n",
        f"{HEAD}content-length: 4\r\n",
        f"{HEAD}Accept: a\r\nAccept: b\r\n",
        f"{HEAD}Transfer-Encoding: chunked\r\n",
        f"{HEAD}Expect: 100-continue\r\n",
        f"{HEAD}Upgrade: websocket\r\n",
        f"{HEAD}X-Forwarded-Proto: https\r\n",
        f"{HEAD}A_B: 1\r\n",
        f"{HEAD}Content_Type: text/csv\r\n",
        f"{HEAD}A : 1\r\n",
        f"{HEAD}A:1\r\n",
        f"{HEAD}A: \r\n",
        f"{HEAD}A: 1 \r\n",
        f"{HEAD}A: 1\0\r\n",
        f"{HEAD}A: 1\n B: 2\r\n",
        f"{HEAD}A: 1\rB: 2\r\n",
        f"{HEAD} folded: 1\r\n",
        f"{HEAD}A: {'x' * 5000}\r\n",
        HEAD.replace("/invocations", f"/invocations?{'x' * 5000}"),
        HEAD + "".join(f"A{number}: 1\r\n" for number in range(PLAIN_FIELDS)),
        "",
    ],
)
def test_any_other_head_is_left_to_gunicorn(head: str) -> None:
    assert read_plain(f"{head}\r\n".encode("latin-1")) is None


def test_half_a_head_is_left_to_gunicorn() -> None:
    whole = f"{HEAD}\r\n".encode()
    assert read_plain(whole) is not None
    assert not any(map(read_plain, (whole[:end] for end in range(len(whole)))))


Application = Callable[[dict[str, Any], "StartResponse"], Iterable[bytes]]


class StandIn(Worker):
    """A worker without a process of its own."""

    def __init__(self, application: Application) -> None:
        self.cfg, self.wsgi, self.alive = Config(), application, True


def answer_of(application: Application, sent: bytes, later: bytes = b"") -> bytes:
    """Return what a worker answers; ``later`` is sent when it has begun."""
    nginx, worker = socket.socketpair()
    with nginx:
        nginx.settimeout(10)
        nginx.sendall(sent)

        def serve(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
            nginx.sendall(later)
            return application(environ, start_response)

        StandIn(serve)._answer(CallerConnection(worker, "", "/run/data.sock"))
        return b"".join(iter(lambda: nginx.recv(2**16), b""))


def echo(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return (body,)


def test_a_body_may_come_with_its_head_or_after_it() -> None:
    answers = {
        answer_of(echo, f"{HEAD}\r\n{begin}".encode(), end.encode())
        for begin, end in (("body", ""), ("bo", "dy"), ("", "body"))
    }
    assert answers == {
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nbody"
    }


def test_no_byte_behind_the_body_is_of_it() -> None:
    def read_all(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        return echo({**environ, "CONTENT_LENGTH": "-1"}, start_response)

    assert answer_of(read_all, f"{HEAD}\r\nbodyPOST".encode()).endswith(b"\r\n\r\nbody")


def test_the_memory_of_a_whole_answer_is_held_until_it_is_sent() -> None:
    nginx, worker = socket.socketpair()
    seen: list[bytes] = []

    def application(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        answer = Answer(b"[1]", on_sent=lambda: seen.append(nginx.recv(2**16, socket.MSG_DONTWAIT)))
        return send(answer, environ, start_response)

    with nginx:
        nginx.sendall(f"{HEAD}\r\nbody".encode())
        StandIn(application)._answer(CallerConnection(worker, "", "/run/data.sock"))
    assert [part[-3:] for part in seen] == [b"[1]"]


def test_an_answer_in_parts_is_chunked_and_one_that_breaks_off_has_no_end() -> None:
    def parts(fails: bool) -> Iterator[bytes]:
        yield b"one"
        if fails:
            raise ValueError("broken")

    def stream(fails: bool) -> bytes:
        def application(_: object, start_response: StartResponse) -> Iterable[bytes]:
            start_response("200 OK", [("Content-Type", "text/plain")])
            return parts(fails)

        return answer_of(application, f"{HEAD}\r\nbody".encode())

    whole, broken = stream(fails=False), stream(fails=True)
    assert b"Transfer-Encoding: chunked" in whole
    assert whole.endswith(b"3\r\none\r\n0\r\n\r\n")
    assert broken.endswith(b"3\r\none\r\n")


def test_a_header_that_would_end_its_line_is_an_error_of_the_box() -> None:
    def application(_: object, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "a\r\nSet-Cookie: b"), ("Content-Length", "1")])
        return (b"a",)

    answer = answer_of(application, f"{HEAD}\r\nbody".encode())
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"Set-Cookie" not in answer


def test_an_application_that_fails_or_exits_is_an_error_of_the_box() -> None:
    for error in (ValueError, sys.exit):

        def application(_: object, __: object, error: Callable[[], Any] = error) -> Iterable[bytes]:
            raise error() or io.UnsupportedOperation

        assert answer_of(application, f"{HEAD}\r\nbody".encode()).startswith(b"HTTP/1.1 500 ")
