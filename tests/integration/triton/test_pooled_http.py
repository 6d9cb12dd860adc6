"""A pooled HTTP connection never gives one request the answer to another, whatever the server sends."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from sm.errors import TriremeError
from sm.triton import health
from sm.triton.http_proxy import Reply, Request, Upstream

SEED = 13
REQUESTS = 600
CALLERS = 4
#: Seconds. Some servers leave their caller to wait.
TIMEOUT = 0.3
STRAY = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray"
EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def sized(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(body: bytes, size: str = "", end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + (size or f"{len(body):x}").encode() + b"\r\n" + body + b"\r\n" + end


#: Answers that leave the connection in order.
SOUND: dict[str, Callable[[bytes], bytes]] = {
    "with a length": sized,
    "in chunks": chunked,
    "after early hints": lambda body: EARLY_HINTS + sized(body),
    "after several informational answers": lambda body: CONTINUE + EARLY_HINTS * 3 + sized(body),
}
#: Answers after which the server goes on as if nothing had happened.
UNSOUND: dict[str, Callable[[bytes], bytes]] = {
    "a body after 204": lambda body: sized(body, "204 No Content"),
    "a body after 304": lambda body: sized(body, "304 Not Modified"),
    "an answer after 204": lambda _: b"HTTP/1.1 204 No Content\r\n\r\n" + STRAY,
    "bytes after the length": lambda body: sized(body) + b"more",
    "bytes after the last chunk": lambda body: chunked(body) + b"more",
    "two answers": lambda body: sized(body) + STRAY,
    "two answers in chunks": lambda body: chunked(body) + STRAY,
    "an informational answer behind": lambda body: sized(body) + EARLY_HINTS,
    "half an answer behind": lambda body: sized(body) + STRAY[:20],
    "a length and chunks": lambda body: (
        chunked(body).replace(b"\r\n", b"\r\nContent-Length: 3\r\n", 1) + STRAY
    ),
    "two lengths": lambda body: sized(body, "200 OK", "Content-Length: 2") + STRAY,
    "another protocol": lambda body: b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + sized(body),
    "a broken size of a chunk": lambda body: chunked(body, "zz"),
    "a chunk shorter than its size": lambda body: chunked(body, "ff"),
    "a chunk longer than its size": lambda body: chunked(body, "2"),
    "an extension": lambda body: chunked(body, f"{len(body):x};a=b", b"0\r\nTrailer: x\r\n\r\n") + STRAY,
    "no HTTP": lambda body: body + b"\r\n\r\n" + STRAY,
    "a header without a colon": lambda body: b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n" + STRAY,
    "a header without end": lambda _: b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
}
#: Answers after which the server closes.
ENDING: dict[str, Callable[[bytes], bytes]] = {
    "until the end": lambda body: b"HTTP/1.1 200 OK\r\n\r\n" + body,
    "of HTTP 1.0": lambda body: sized(body).replace(b"1.1", b"1.0"),
    "and says so": lambda body: sized(body, "200 OK", "Connection: close"),
    "amid the length": lambda body: sized(body)[:-2],
    "amid a chunk": lambda body: chunked(body)[:-9],
    "before the last chunk": lambda body: chunked(body, end=b""),
    "amid the head": lambda body: sized(body)[:12],
    "at once": lambda _: b"",
}
WAYS = {**SOUND, **UNSOUND, **ENDING}


@contextmanager
def misbehaving(asked: Counter[str]) -> Iterator[int]:
    """A server that answers ``/<number>`` with the number, in the way that the header ``way`` names."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    threads: list[threading.Thread] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threads.append(threading.Thread(target=serve, args=(listener.accept()[0],)))
                threads[-1].start()

    def serve(connection: socket.socket) -> None:
        asked["connections"] += 1
        with contextlib.suppress(OSError), connection:
            connection.settimeout(20)
            while request := read(connection):
                method, number, way = request
                content = WAYS[way](number)
                asked[method] += 1
                connection.sendall(content)
                if way in ENDING:
                    return

    main = threading.Thread(target=accept)
    main.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        main.join()
        listener.close()
        for thread in threads:
            thread.join(30)


def read(connection: socket.socket) -> tuple[str, bytes, str] | None:
    """Method, number and way of a request; None at the connection's end."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65536)
        if not part:
            return None
        received += part
    lines = received.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    method, target, _ = lines[0].split(" ")
    way = next(line.partition(": ")[2] for line in lines if line.startswith("way: "))
    return method, target.strip("/").encode(), way


def exchange(upstream: Upstream, number: int, way: str, method: str = "GET") -> Reply | None:
    try:
        return upstream.send(Request(method, f"/{number}", headers={"way": way}))
    except TriremeError:
        return None


@pytest.mark.parametrize("way", WAYS)
def test_the_request_after_a_strange_answer_gets_its_own(way: str) -> None:
    with misbehaving(Counter()) as port:
        upstream = Upstream(port, timeout=TIMEOUT)
        for number in range(3):
            response = exchange(upstream, number, way)
            if way in SOUND:
                assert response == Reply(200, response.headers if response else {}, str(number).encode())
            after = exchange(upstream, 100 + number, "with a length")
            assert after is not None
            assert after.body == str(100 + number).encode()
        upstream.close()


@pytest.mark.parametrize("status", ["200 OK", "405 Method Not Allowed"])
def test_a_body_after_head_reaches_nobody(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WAYS, "head", lambda body: sized(body * 100, status))
    with misbehaving(Counter()) as port:
        upstream = Upstream(port, timeout=TIMEOUT)
        for number in range(10):
            reply = exchange(upstream, number, "head", "HEAD")
            assert reply is not None
            assert (reply.status, reply.body) == (int(status[:3]), b"")
            after = exchange(upstream, 100 + number, "with a length")
            assert after is not None
            assert after.body == str(100 + number).encode()
        upstream.close()


def test_sound_answers_share_a_connection() -> None:
    asked: Counter[str] = Counter()
    with misbehaving(asked) as port:
        upstream = Upstream(port, timeout=TIMEOUT)
        for number, way in enumerate([*SOUND] * 5):
            assert exchange(upstream, number, way) is not None
        upstream.close()
    assert asked["connections"] == 1


def test_no_caller_gets_anothers_answer_from_a_server_that_misbehaves() -> None:
    """Any mixture of answers, four callers, one pool: an answer is the request's own or an error."""
    draw = random.Random(SEED)
    turns = [
        (number, draw.choice([*WAYS, *SOUND, *SOUND]), draw.choice(["GET", "GET", "POST", "HEAD"]))
        for number in range(REQUESTS)
    ]
    with misbehaving(Counter()) as port:
        upstream = Upstream(port, timeout=TIMEOUT)
        with ThreadPoolExecutor(CALLERS) as callers:
            replies = list(callers.map(lambda turn: exchange(upstream, *turn), turns))
        upstream.close()
    outcomes: Counter[str] = Counter()
    for (number, way, method), reply in zip(turns, replies, strict=True):
        if reply is None:
            outcomes["error"] += 1
            assert way not in SOUND, (way, method)
        elif reply.status == 200 and method != "HEAD":
            assert reply.body == str(number).encode(), (way, method)
            outcomes["own"] += 1
    assert outcomes["own"] > REQUESTS / 4
    assert outcomes["error"] > REQUESTS / 20


@pytest.mark.parametrize("way", WAYS)
def test_the_control_planes_own_questions_end_with_an_answer_or_status_0(way: str) -> None:
    with misbehaving(Counter()) as port:
        for number in range(2):
            found = health.request(port, {"way": way}, "GET", f"/{number}", TIMEOUT)
            if way in ("with a length", "in chunks", "and says so"):
                assert found == (200, str(number).encode())
            assert b"stray" not in found[1]
