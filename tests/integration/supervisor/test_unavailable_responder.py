"""While nothing else listens on the public port, the supervisor answers 503 with the reason."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from selectors import PollSelector

import pytest
import requests

from sm.server.access import certificates
from sm.server.supervisor import ports
from sm.server.supervisor.ports import UnavailableResponder
from tests.support import certificates as certificate_files
from tests.support.boxes import wait_until

pytestmark = pytest.mark.core

REASON = "the box is stopping"


class RunningResponder:
    """An unavailable responder and its event loop, run in a thread.

    ``tls_folder`` holds the certificate, if the port speaks TLS.
    """

    def __init__(self, tls_folder: Path | None = None) -> None:
        self.listener, self.selector = ports.listen(0), PollSelector()
        self.port = self.listener.getsockname()[1]
        context = partial(certificates.server_context, tls_folder) if tls_folder else None
        self.responder = UnavailableResponder(self.listener, self.selector, lambda: REASON, context)
        self.serving, self.stopping, self.rounds = True, False, 0

    def run_loop(self) -> None:
        while not self.stopping:
            self.run_round(self.serving)
        self.responder.close()
        while self.responder.busy:
            self.run_round(False)
        self.selector.close()

    def run_round(self, serving: bool) -> None:
        self.rounds += 1
        self.responder.serve(serving)
        for key, _ in self.selector.select(0.02):
            key.data()

    def stop_serving(self) -> None:
        """Leave callers to the front from now on. Returns after the loop's current round."""
        self.serving = False
        rounds = self.rounds
        wait_until(lambda: self.rounds > rounds + 1)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


@contextmanager
def running(tls_folder: Path | None = None) -> Iterator[RunningResponder]:
    responder = RunningResponder(tls_folder)
    with ThreadPoolExecutor(1) as pool:
        loop = pool.submit(responder.run_loop)
        yield responder
        responder.stopping = True
        loop.result(60)


@pytest.fixture
def responder() -> Iterator[RunningResponder]:
    with running() as responder:
        yield responder


@pytest.fixture
def tls_responder(tmp_path: Path) -> Iterator[RunningResponder]:
    files = certificate_files.write(tmp_path)
    certificates.install(certificates.read(*files), tmp_path / "tls", files)
    with running(tmp_path / "tls") as responder:
        yield responder


@pytest.mark.parametrize("size", [0, 2, 2_000_000])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_caller_gets_503_with_retry_after_and_the_reason(
    responder: RunningResponder, tls_responder: RunningResponder, tmp_path: Path, scheme: str, size: int
) -> None:
    port = (tls_responder if scheme == "https" else responder).port
    url = f"{scheme}://localhost:{port}/invocations"
    response = requests.post(url, data=b"x" * size, timeout=10, verify=str(tmp_path / "box.pem"))
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert (response.json()["code"], response.json()["error"]) == ("not_ready", REASON)
    assert response.json()["request_id"]


def read_all(caller: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := caller.recv(1000):
            received += chunk
    return received


def test_a_silent_caller_gets_503_and_is_disconnected(responder: RunningResponder) -> None:
    with responder.connect() as caller:
        assert json.loads(read_all(caller).partition(b"\r\n\r\n")[2])["code"] == "not_ready"
        wait_until(lambda: not responder.responder.busy)


def test_a_caller_that_sends_nothing_before_the_port_closes_gets_503(responder: RunningResponder) -> None:
    deferred = (socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT)
    responder.listener.setsockopt(*deferred, 30)  # as nginx does
    wait_until(lambda: responder.listener.getsockopt(*deferred) == 0)
    with responder.connect() as caller:
        responder.stopping = True
        assert read_all(caller).startswith(b"HTTP/1.1 503 ")


def test_callers_are_left_to_the_front_and_those_that_it_never_took_get_503(
    responder: RunningResponder,
) -> None:
    responder.stop_serving()
    with responder.connect() as caller:
        caller.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert not select.select([caller], [], [], 0.3)[0]
        responder.stopping = True
        assert read_all(caller).startswith(b"HTTP/1.1 503 ")
    with pytest.raises(ConnectionRefusedError):
        responder.connect()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_a_caller_that_does_not_finish_the_handshake_is_disconnected(
    tls_responder: RunningResponder, sent: bytes
) -> None:
    with tls_responder.connect() as caller:
        caller.sendall(sent)
        assert b"HTTP/1.1" not in read_all(caller)
        wait_until(lambda: not tls_responder.responder.busy)
