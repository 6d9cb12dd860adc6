"""What stands in for Amazon: moto's fake AWS, a server of one error, and a real registry, all on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import IO

PASSWORD = "123456789012-auth-token"  # what moto's ECR gives
SALT = "$2a$05$abcdefghijklmnopqrstuu"  # bcrypt, the only hash that the registry takes


@contextmanager
def started(command: list[str], listening: str, **env: str) -> Iterator[str]:
    """Run a server; its port is read from the first line of its log that `listening` matches."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **env}
    )
    assert process.stdout is not None
    log = threading.Thread(target=process.stdout.read)  # a full pipe would stop the server
    try:
        address = f"127.0.0.1:{port_in(process.stdout, listening)}"
        log.start()
        yield address
    finally:
        process.terminate()
        process.wait(10)
        if log.ident:
            log.join(10)
        process.stdout.close()


def port_in(log: IO[str], listening: str) -> str:
    seen = ""
    for line in log:
        seen += line
        if found := re.search(listening, line):
            return found[1]
    raise AssertionError(seen)


def fake_aws(**env: str) -> AbstractContextManager[str]:
    """moto's server, as `host:port`."""
    return started(
        [sys.executable, "-m", "moto.server", "-p", "0"], r"Running on http://127.0.0.1:(\d+)", **env
    )


def running_registry(config: Path) -> AbstractContextManager[str]:
    """Debian's docker-registry, as `host:port`."""
    return started(["docker-registry", "serve", str(config)], r"listening on 127\.0\.0\.1:(\d+)")


@contextmanager
def refusing_aws(code: str, message: str) -> Iterator[str]:
    """An AWS that answers each call with one error, in the form that STS gives it."""
    body = f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(403)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_PUT = do_POST

        def log_message(self, *_: object) -> None:
            """Nothing: pytest's output is no log."""

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def registry_config(folder: Path, password: str = PASSWORD, storage: str = "") -> Path:
    """A registry that wants the password of the fake ECR, so that a push without a login is refused."""
    hashed = subprocess.run(
        ["perl", "-e", "print crypt($ARGV[0], $ARGV[1])", password, SALT],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (folder / "htpasswd").write_text(f"AWS:{hashed}\n")
    config = folder / "registry.yml"
    config.write_text(
        "version: 0.1\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/images}}{storage}}}\n"
        "http: {addr: '127.0.0.1:0'}\n"
        f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}\n"
    )
    return config
