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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from werkzeug import Request, Response

from sm.run_state import Box
from sm.server.supervisor import nginx as front
from sm.server.supervisor import ports
from sm.settings import Settings
from tests.support.boxes import WAIT_TIMEOUT_S
from tests.support.http_server import serving
from tests.support.raw_http import exchange

NGINX = front.find_nginx(Settings())


@dataclass
class Upstream:
    """The requests that the servers behind nginx have received, and the response that they give."""

    received_requests: list[tuple[str, str, dict[str, str], int]] = field(default_factory=list)
    body: bytes = b'{"result":1}'
    hold: threading.Event = field(default_factory=threading.Event)
    holding: bool = False
    held_plane: str = "data"
    #: How many requests lose their connection before they are answered, as when a worker dies.
    drops: int = 0

    def respond(self, plane: str, request: Request) -> Response:
        path, received = request.environ["REQUEST_URI"], len(request.get_data())
        self.received_requests.append((plane, path, dict(request.headers), received))
        if self.holding and plane == self.held_plane and path != "/ping":
            self.hold.wait(30)
        if self.drops:
            self.drops -= 1
            raise ConnectionAbortedError
        if "X-Trireme-Unserved" not in request.headers:
            return Response(self.body)
        # The control plane's answer to a request that no worker took.
        error = {"error": "no worker", "code": "not_ready"}
        error["request_id"] = request.headers["X-Trireme-Request-Id"]
        return Response(json.dumps(error), 503, {"Retry-After": "1"}, content_type="application/json")


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
    with ExitStack() as servers, log.open("wb") as stream:
        for plane in planes:
            servers.enter_context(serving(partial(upstream.respond, plane), f"unix://{sockets[plane]}"))
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
