"""Fixture: a box with TLS, API keys, rate limits and CORS, as the documentation sets it up."""

from __future__ import annotations

import http.client
import json
import shlex
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sm.server.access import keys
from tests.support import pages
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, free_port

ORIGIN = "https://app.example.com"
#: The documentation's commands: they make the files, start the box and call it.
PAGE = "run/expose-the-port.md"
(MAKE_COMMANDS, CALL_COMMANDS), (START_COMMAND, INVOKE_COMMAND) = (
    pages.code_blocks(PAGE),
    pages.code_blocks(PAGE, "bash"),
)


@dataclass
class LockedBox:
    """The box with its ports, certificate and API keys."""

    box: RunningBox
    folder: Path
    tls_port: int
    page_port: int  # for a test's web pages: the origin ``localhost`` is allowed, ``127.0.0.1`` is not
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

    def connect(self) -> ssl.SSLSocket:
        """Open a TLS connection without verifying the certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        plain = socket.create_connection(("127.0.0.1", self.tls_port), timeout=20)
        return context.wrap_socket(plain)

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request over TLS, and return status, headers with lower-case names, and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.tls_port, timeout=30)
        connection.sock = self.connect()
        try:
            connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def invoke(self, **headers: str) -> tuple[int, dict[str, str], bytes]:
        body = json.dumps({"modelname": "probe", "payload": {}}).encode()
        return self.request("POST", "/invocations", body, Content_Type="application/json", **headers)


def read_error(answer: tuple[int, dict[str, str], bytes]) -> dict[str, Any]:
    """Return the body of an error, after checking that it has the box's error shape."""
    body: dict[str, Any] = json.loads(answer[2])
    assert set(body) == {"error", "code", "request_id"}
    assert answer[1]["content-type"] == "application/json"
    return body


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
    tls_port, page_port = free_port(), free_port()
    variables["TRIREME_CORS_ORIGINS"] += f",http://localhost:{page_port}"
    with boxes.own(
        ("echo", "counts"),
        ("platform", "streaming"),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        TRIREME_TLS_PORT=str(tls_port),
        SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true",
        TRIREME_MAX_SESSIONS="20",
        **variables,
    ) as box:
        yield LockedBox(
            box=box,
            folder=folder,
            tls_port=tls_port,
            page_port=page_port,
            keys_file=keys_file,
            key=(folder / "alice.key").read_text().strip(),
            limited_key=limited_key,
            other_key=other_key,
        )
