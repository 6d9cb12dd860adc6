"""Fixture: a box with TLS, API keys, rate limits and CORS, as the documentation sets it up."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from werkzeug import Response

from sm.http.control_paths import all_paths
from sm.server.access import keys
from tests.support import pages
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, free_port
from tests.support.http_server import serving
from tests.support.load import dispatch_body

ORIGIN = "https://app.example.com"
#: The documentation's commands: they make the files, start the box and call it.
PAGE = "run/expose-the-port.md"
(MAKE_COMMANDS, CALL_COMMANDS), (START_COMMAND, INVOKE_COMMAND) = (
    pages.code_blocks(PAGE),
    pages.code_blocks(PAGE, "bash"),
)
ROUTES_THAT_NEED_A_KEY = [
    ("POST", "/invocations"),
    ("POST", "/endpoints/any/invocations"),
    ("POST", "/endpoints/any/invocations-response-stream"),
    ("GET", "/invocations-bidirectional-stream"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/rerank"),
    ("GET", "/v1/models"),
    ("GET", "/v2"),
    ("GET", "/v2/health/ready"),
    ("POST", "/v2/models/echo/infer"),
    *[("GET", re.sub("<.*?>", "probe", path.rule)) for path in all_paths() if not path.is_open],
    ("POST", "/models"),
    ("DELETE", "/models/probe"),
    ("POST", "/models/probe/invoke"),
    ("GET", "/anything"),
    ("GET", "/ping/x"),
]


class Answer(NamedTuple):
    """Its headers have lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> tuple[int, str]:
        """The status and code of an error in the box's shape."""
        members = json.loads(self.body)
        assert (set(members), self.headers["content-type"]) == (
            {"error", "code", "request_id"},
            "application/json",
        )
        return self.status, members["code"]


@dataclass
class LockedBox:
    """The box with its ports, certificate and API keys."""

    box: RunningBox
    folder: Path
    tls_port: int
    page: str  # the URL of a web page from another server, whose origin is allowed
    keys_file: Path
    key: str  # of ``alice``, who may send a thousand requests a second
    limited_key: str  # of ``bob``, who may send three requests at once, then one every two seconds
    other_key: str  # of ``dora``, with alice's limits

    @property
    def certificate(self) -> Path:
        return self.folder / "box.pem"

    @property
    def certificate_key(self) -> Path:
        return self.folder / "box.key"

    def connect(self, *protocols: str) -> ssl.SSLSocket:
        """Open a TLS connection without verifying the certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols([*protocols])
        plain = socket.create_connection(("127.0.0.1", self.tls_port), timeout=60)
        return context.wrap_socket(plain)

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Send a request over TLS."""
        connection = http.client.HTTPConnection("127.0.0.1", self.tls_port, timeout=30)
        connection.sock = self.connect()
        try:
            connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def invoke(self, **headers: str) -> Answer:
        body = dispatch_body("probe", {})
        return self.request("POST", "/invocations", body, Content_Type="application/json", **headers)

    def warnings(self, file: Path) -> int:
        """Return how many warnings in the log name a file."""
        lines = self.box.log.read_text().splitlines()
        return sum('"level":"warning"' in line and str(file) in line for line in lines)


@pytest.fixture(scope="session")
def locked(boxes: Boxes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LockedBox]:
    folder = tmp_path_factory.mktemp("locked")
    pages.run_commands(MAKE_COMMANDS, folder, port=0)
    variables: dict[str, Any] = dict(word.split("=", 1) for word in shlex.split(START_COMMAND) if "=" in word)
    for name in ("TRIREME_TLS_CERTIFICATE", "TRIREME_TLS_KEY", "TRIREME_API_KEYS_FILE"):
        variables[name] = str(folder / variables[name])
    keys_file, limited_key, other_key = folder / "keys", keys.generate(), keys.generate()
    with keys_file.open("a") as file:
        file.write("\n# slow\n" + keys.format_line("bob", limited_key, rate=0.5, burst=3) + "\n")
        file.write(keys.format_line("dora", other_key) + "\n")
    tls_port, origins = free_port(), variables.pop("TRIREME_CORS_ORIGINS")
    with (
        serving(lambda _: Response("<!doctype html>", content_type="text/html")) as page,
        boxes.own(
            ("echo", "counts", "torrent"),
            ("platform", "streaming"),
            SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
            SAGEMAKER_MODEL_SERVER_WORKERS="1",
            TRIREME_TLS_PORT=str(tls_port),
            TRIREME_CORS_ORIGINS=f"{origins},{page}",
            SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true",
            TRIREME_MAX_SESSIONS="20",
            TRIREME_STREAM_STALL_SECONDS="3",
            **variables,
        ) as box,
    ):
        alice = (folder / "alice.key").read_text().strip()
        yield LockedBox(box, folder, tls_port, page, keys_file, alice, limited_key, other_key)
