"""While nobody else answers at the public port, the supervisor does: 503, and why."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from selectors import PollSelector

import pytest
import requests

from sm.server.access import certificates
from sm.server.supervisor import ports
from sm.server.supervisor.unavailable_responder import TlsUnavailableResponder, UnavailableResponder
from tests.support import certificates as certificate_files
from tests.support.boxes import wait_until


class Post:
    """A doorman and the loop it lives in, turning in a thread."""

    def __init__(self, tls_folder: Path | None = None) -> None:
        """``tls_folder``: has the certificate of a port with TLS."""
        self.listener = ports.listen(0)
        self.port = self.listener.getsockname()[1]
        self.selector = PollSelector()
        place = (self.listener, self.selector, lambda: "the box is stopping", time.monotonic)
        if tls_folder:
            self.doorman: UnavailableResponder = TlsUnavailableResponder(
                *place, lambda: certificates.server_context(tls_folder)
            )
        else:
            self.doorman = UnavailableResponder(*place)
        self.wanted = True
        self.over = False
        self.turns = 0
        self.thread = threading.Thread(target=self.turn)

    def turn(self) -> None:
        while not self.over:
            self.turns += 1
            self.doorman.serve(self.wanted)
            for key, _ in self.selector.select(0.02):
                key.data()
        self.doorman.close()
        while self.doorman.busy:
            self.doorman.serve(False)
            for key, _ in self.selector.select(0.02):
                key.data()
        self.selector.close()

    def close_door(self) -> None:
        """Leave callers to somebody else from now on: after the loop's present turn."""
        self.wanted = False
        turns = self.turns
        wait_until(lambda: self.turns > turns + 1)


@pytest.fixture
def post() -> Iterator[Post]:
    started = Post()
    started.thread.start()
    yield started
    started.over = True
    started.thread.join(60)


@pytest.mark.parametrize("size", [0, 2, 2_000_000])
def test_a_caller_is_told_to_come_back_and_why(post: Post, size: int) -> None:
    response = requests.post(f"http://127.0.0.1:{post.port}/invocations", data=b"x" * size, timeout=10)
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "1"
    assert response.json()["code"] == "not_ready"
    assert response.json()["error"] == "the box is stopping"
    assert response.json()["request_id"]


def test_a_caller_who_says_nothing_is_let_go(post: Post) -> None:
    with socket.create_connection(("127.0.0.1", post.port), timeout=10) as silent:
        received = b""
        while part := silent.recv(1000):
            received += part
        assert json.loads(received.partition(b"\r\n\r\n")[2])["code"] == "not_ready"
        wait_until(lambda: not post.doorman.busy)


def test_a_closed_door_leaves_callers_to_the_front(post: Post) -> None:
    post.close_door()
    with socket.create_connection(("127.0.0.1", post.port), timeout=10) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\n\r\n")
        caller.settimeout(0.3)
        with pytest.raises(TimeoutError):
            caller.recv(100)


def test_many_callers_at_once_all_get_their_answer(post: Post) -> None:
    statuses: list[int] = []

    def call() -> None:
        response = requests.post(f"http://127.0.0.1:{post.port}/", data=b"x" * 10_000, timeout=30)
        statuses.append(response.status_code)

    callers = [threading.Thread(target=call) for _ in range(50)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert statuses == [503] * 50


def test_the_last_ones_who_came_before_the_port_is_given_back_get_their_answer(post: Post) -> None:
    post.close_door()
    with socket.create_connection(("127.0.0.1", post.port), timeout=10) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\n\r\n")
        post.over = True
        received = b""
        while part := caller.recv(1000):
            received += part
    assert received.startswith(b"HTTP/1.1 503 ")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", post.port), timeout=10)


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[Post]:
    files = certificate_files.write(tmp_path)
    certificates.install(certificates.read(*files), tmp_path / "tls", files)
    started = Post(tmp_path / "tls")
    started.thread.start()
    yield started
    started.over = True
    started.thread.join(60)


@pytest.mark.parametrize("size", [0, 2_000_000])
def test_a_caller_with_tls_is_told_the_same(encrypted: Post, tmp_path: Path, size: int) -> None:
    response = requests.post(
        f"https://localhost:{encrypted.port}/invocations",
        data=b"x" * size,
        timeout=10,
        verify=str(tmp_path / "box.pem"),
    )
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "1"
    assert response.json()["error"] == "the box is stopping"


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_a_caller_who_does_not_finish_the_handshake_is_let_go(encrypted: Post, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", encrypted.port), timeout=10) as caller:
        caller.sendall(said)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while part := caller.recv(1000):
                received += part
        assert b"HTTP/1.1" not in received
        wait_until(lambda: not encrypted.doorman.busy)
