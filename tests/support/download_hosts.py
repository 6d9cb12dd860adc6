"""A host to download from: nginx with a certificate of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import certificates
from tests.support.boxes import free_port, wait_until

NO_REDIRECTS: Mapping[str, str] = {}
CONFIGURATION = """
daemon off;
user root;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    log_format authorization "$request_uri $http_authorization";
    access_log {folder}/access.log authorization;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        root {root};
        {locations}
    }}
}}
"""


@contextlib.contextmanager
def https_site(folder: Path, root: Path, redirects: Mapping[str, str] = NO_REDIRECTS) -> Iterator[int]:
    """Serve the files of ``root`` with nginx, which sends ranges and ETags; yields the port.

    The test's processes trust it meanwhile. ``folder`` gets ``access.log``: the path and the Authorization of each
    request.
    """
    certificate, key = certificates.write(folder)
    port = free_port()
    configuration = folder / "nginx.conf"
    locations = "".join(f"location = {path} {{ return 302 {to}; }}" for path, to in redirects.items())
    names = {"folder": folder, "port": port, "certificate": certificate, "key": key, "root": root}
    configuration.write_text(CONFIGURATION.format(**names, locations=locations))
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    with (
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen([str(program), "-p", str(folder), "-c", str(configuration)]) as nginx,
    ):
        patch.setenv("SSL_CERT_FILE", str(certificate))
        try:
            wait_until(lambda: accepts(port), description="nginx")
            yield port
        finally:
            nginx.terminate()


def accepts(port: int) -> bool:
    """True if somebody listens on a port."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0
