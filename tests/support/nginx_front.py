"""Run a real nginx in front of a small server that records what arrives."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

import pytest

from sm.run_state import Box
from sm.server.supervisor import nginx as front
from sm.server.supervisor import ports
from sm.settings import Settings
from tests.support.boxes import WAIT_TIMEOUT_S
from tests.support.raw_http import exchange

NGINX = front.find_nginx(Settings())


@dataclass
class Upstream:
    """The requests that the servers behind nginx have received, and the response that they give."""

    received_requests: list[tuple[str, str, dict[str, str], int]] = field(default_factory=list)
    status: int = 200
    body: bytes = b'{"result":1}'
    hold: threading.Event = field(default_factory=threading.Event)
    holding: bool = False
    held_plane: str = "data"
    #: How many requests lose their connection before they are answered, as when a worker dies.
    drops: int = 0


class UnixServer(ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 1000


def make_handler(upstream: Upstream, plane: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            received = len(self.rfile.read(size))
            upstream.received_requests.append((plane, self.path, dict(self.headers.items()), received))
            if upstream.holding and plane == upstream.held_plane and self.path != "/ping":
                upstream.hold.wait(30)
            if upstream.drops:
                upstream.drops -= 1
                self.close_connection = True
                return
            status, body = upstream.status, upstream.body
            if "X-Trireme-Unserved" in self.headers:
                # The control plane's answer to a request that no worker took.
                request_id = self.headers["X-Trireme-Request-Id"]
                error = {"error": "no worker", "code": "not_ready", "request_id": request_id}
                status, body = 503, json.dumps(error).encode()
            self.send_response(status)
            if status == 503:
                self.send_header("Content-Type", "application/json")
                self.send_header("Retry-After", "1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def address_string(self) -> str:
            return plane

        def log_message(self, *args: object) -> None:
            pass

    return Handler


@dataclass
class Front:
    """A running nginx."""

    port: int
    upstream: Upstream
    process: subprocess.Popen[bytes]
    log: Path
    box: Box

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def send(self, raw: bytes) -> bytes:
        return exchange(self.port, raw)


@contextmanager
def running_upstream(upstream: Upstream, *sockets: tuple[str, Path]) -> Iterator[None]:
    servers = [UnixServer(str(path), make_handler(upstream, plane)) for plane, path in sockets]
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield
    upstream.hold.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def make_box(run: Path) -> Box:
    return Box("t", run, run, 1, 2, 3, "nginx", 0)


@contextmanager
def running_nginx(
    run: Path, planes: tuple[str, ...] = ("data", "control"), **changes: Any
) -> Iterator[Front]:
    listener = ports.listen(0)
    settings = replace(Settings(workers=1, threads=2, queue=2), port=listener.getsockname()[1], **changes)
    box, upstream = make_box(run), Upstream()
    assert NGINX is not None
    command = front.prepare_nginx(NGINX, settings, box)
    sockets = {"data": box.data_socket, "control": box.control_socket}
    log = run / "log"
    with running_upstream(upstream, *((plane, sockets[plane]) for plane in planes)), log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            env={**os.environ, "NGINX": f"{listener.fileno()};"},
            pass_fds=(listener.fileno(),),
            stderr=stream,
        )
        try:
            yield Front(settings.port, upstream, process, log, box)
        finally:
            upstream.hold.set()
            process.terminate()
            try:
                process.wait(WAIT_TIMEOUT_S)
            finally:
                process.kill()
                listener.close()


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # A Unix socket's path is limited to 107 bytes, so this does not use tmp_path.
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def read_error(answer: tuple[int, dict[str, str], bytes], status: int, code: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(answer[2])
    assert (answer[0], answer[1]["content-type"], body["code"]) == (status, "application/json", code)
    assert set(body) == {"error", "code", "request_id"}
    assert answer[1]["x-request-id"] == body["request_id"] != ""
    return body
