"""A pooled HTTP connection never returns another request's answer, whatever the server sends."""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from sm.errors import CallerGone, TriremeError
from sm.invocation import Invocation
from sm.model_processes.answer_guard import AnswerGuard
from sm.triton import server
from sm.triton.calls import Calls
from sm.triton.http_proxy import ProxyReply, ProxyRequest, Upstream
from tests.integration.triton.scripted_triton import socket_server

pytestmark = pytest.mark.core

REQUEST_COUNT = 600
#: Short, as some of the servers below never send a whole answer.
TIMEOUT_S = 0.1
#: For an answer of the other servers, which comes for certain.
CERTAIN_TIMEOUT_S = 20.0
STRAY = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray"
EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(body: bytes, size: str = "", end: bytes = b"0\r\n\r\n") -> bytes:
    header = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return header + (size or f"{len(body):x}").encode() + b"\r\n" + body + b"\r\n" + end


#: Answers after which the connection can be used again.
GOOD: dict[str, Callable[[bytes], bytes]] = {
    "with a length": answer,
    "in chunks": chunked,
    "after early hints": lambda body: EARLY_HINTS + answer(body),
    "after several informational answers": lambda body: CONTINUE + EARLY_HINTS * 3 + answer(body),
}
#: Wrong answers after which the server keeps the connection open.
BAD: dict[str, Callable[[bytes], bytes]] = {
    "a body after 204": lambda body: answer(body, "204 No Content"),
    "a body after 304": lambda body: answer(body, "304 Not Modified"),
    "an answer after 204": lambda _: b"HTTP/1.1 204 No Content\r\n\r\n" + STRAY,
    "bytes after the length": lambda body: answer(body) + b"more",
    "bytes after the last chunk": lambda body: chunked(body) + b"more",
    "two answers": lambda body: answer(body) + STRAY,
    "two answers in chunks": lambda body: chunked(body) + STRAY,
    "an informational answer behind": lambda body: answer(body) + EARLY_HINTS,
    "half an answer behind": lambda body: answer(body) + STRAY[:20],
    "a length and chunks": lambda body: (
        chunked(body).replace(b"\r\n", b"\r\nContent-Length: 3\r\n", 1) + STRAY
    ),
    "two lengths": lambda body: answer(body, "200 OK", "Content-Length: 2") + STRAY,
    "another protocol": lambda body: b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + answer(body),
    "a broken size of a chunk": lambda body: chunked(body, "zz"),
    "a chunk shorter than its size": lambda body: chunked(body, "ff"),
    "a chunk longer than its size": lambda body: chunked(body, "2"),
    "an extension": lambda body: chunked(body, f"{len(body):x};a=b", b"0\r\nTrailer: x\r\n\r\n") + STRAY,
    "no HTTP": lambda body: body + b"\r\n\r\n" + STRAY,
    "a header without a colon": lambda body: b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n" + STRAY,
    "a header without end": lambda _: b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
}
#: Answers after which the server closes the connection.
CLOSING: dict[str, Callable[[bytes], bytes]] = {
    "until the end": lambda body: b"HTTP/1.1 200 OK\r\n\r\n" + body,
    "of HTTP 1.0": lambda body: answer(body).replace(b"1.1", b"1.0"),
    "and says so": lambda body: answer(body, "200 OK", "Connection: close"),
    "amid the length": lambda body: answer(body)[:-2],
    "amid a chunk": lambda body: chunked(body)[:-9],
    "before the last chunk": lambda body: chunked(body, end=b""),
    "amid the head": lambda body: answer(body)[:12],
    "at once": lambda _: b"",
}
ANSWERS = {**GOOD, **BAD, **CLOSING}


def misbehave(connection: socket.socket) -> None:
    """Answer each ``/<number>`` with the number, as the request's header ``answer`` says."""
    connection.settimeout(CERTAIN_TIMEOUT_S)
    kind, head = "", b""
    while kind not in CLOSING and (chunk := connection.recv(65536)):
        head += chunk
        if b"\r\n\r\n" in head:
            kind = re.search(rb"\r\nanswer: (.*?)\r\n", head)[1].decode()  # type: ignore[index]
            connection.sendall(ANSWERS[kind](head.split()[1].strip(b"/")))
            head = b""


def timeout_s(kind: str) -> float:
    return TIMEOUT_S if kind in BAD else CERTAIN_TIMEOUT_S


def exchange(upstream: Upstream, number: int, kind: str, method: str = "GET") -> ProxyReply | None:
    try:
        invocation = Invocation(time.monotonic() + timeout_s(kind))
        return upstream.send(ProxyRequest(method, f"/{number}", headers={"answer": kind}), invocation)
    except TriremeError:
        return None


def test_requests_with_good_answers_share_one_connection() -> None:
    connections: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        connections.append(connection)
        misbehave(connection)

    with socket_server(serve) as port:
        upstream = Upstream(port, TIMEOUT_S, Calls(AnswerGuard(None)))
        for number, kind in enumerate([*GOOD] * 5):
            assert exchange(upstream, number, kind) is not None
        upstream.close()
    assert len(connections) == 1


def test_a_caller_may_leave_while_the_server_reads_nothing() -> None:
    connected, left = threading.Event(), threading.Event()

    def serve(_: socket.socket) -> None:
        connected.set()
        left.wait(CERTAIN_TIMEOUT_S)

    with socket_server(serve) as port:
        upstream = Upstream(port, TIMEOUT_S, Calls(AnswerGuard(None)))
        invocation = Invocation(time.monotonic() + CERTAIN_TIMEOUT_S / 2, connected.is_set)
        try:
            with pytest.raises(CallerGone):
                upstream.send(ProxyRequest("POST", "/v2", bytes(2**25)), invocation)
        finally:
            left.set()
            upstream.close()


def test_no_caller_gets_anothers_answer_from_a_server_that_misbehaves() -> None:
    """Four callers on one pool, with answers at random: each request gets its own answer or an error."""
    rng = random.Random(13)
    kinds, methods = [*ANSWERS, *GOOD, *GOOD], ["GET", "GET", "POST", "HEAD"]
    exchanges = [(number, rng.choice(kinds), rng.choice(methods)) for number in range(REQUEST_COUNT)]
    with socket_server(misbehave) as port:
        upstream = Upstream(port, TIMEOUT_S, Calls(AnswerGuard(None)))
        with ThreadPoolExecutor(4) as callers:
            replies = list(callers.map(lambda arguments: exchange(upstream, *arguments), exchanges))
        upstream.close()
    for (number, kind, method), reply in zip(exchanges, replies, strict=True):
        assert reply or kind not in GOOD, (kind, method)
        if reply and reply.status == 200 and method != "HEAD":
            assert reply.body == str(number).encode(), (kind, method)
    assert REQUEST_COUNT / 20 < replies.count(None) < REQUEST_COUNT / 2


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_control_planes_requests_end_with_their_own_answer_or_status_0(kind: str) -> None:
    with socket_server(misbehave) as port:
        for number in range(2):
            response = server.request(port, {"answer": kind}, "GET", f"/{number}", timeout_s(kind))
            if kind in ("with a length", "in chunks", "and says so"):
                assert response == (200, str(number).encode())
            assert b"stray" not in response[1]
