"""Which headers nginx forwards: the name of the caller's API key, and never the key."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sm.http.messages import caller_network
from sm.server.access import keys
from sm.server.startup import prepare_access
from sm.server.supervisor import nginx as front
from sm.settings import HERE, Settings
from tests.support import certificates as certificate_files
from tests.support.boxes import wait_until
from tests.support.nginx_front import NGINX, Front, make_box, running_nginx

pytestmark = pytest.mark.skipif(NGINX is None, reason="there is no nginx")
KEY = keys.generate()


@pytest.fixture(scope="module")
def nginx() -> Iterator[Front]:
    """The real nginx and key checker, in front of servers that record what they receive."""
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        run_folder = Path(name)
        box, keys_file = make_box(run_folder), run_folder / "keys"
        keys_file.write_text(keys.format_line("alice", KEY) + "\n")
        box.save()
        prepare_access(replace(Settings(), api_keys_file=keys_file), box, ())
        key_checker = subprocess.Popen(
            [sys.executable, "-m", "sm.server.access.keys"],
            cwd=HERE,
            env={**os.environ, "TRIREME_RUN_DIR": name, "TRIREME_API_KEYS_FILE": str(keys_file)},
        )
        try:
            wait_until(box.keys_socket.exists)
            with running_nginx(run_folder, api_keys_file=keys_file) as front_server:
                yield front_server
        finally:
            key_checker.terminate()
            key_checker.wait(60)


def forwarded_headers(nginx: Front, method: str, path: str, **headers: str) -> dict[str, str]:
    """Send a request; return the headers that the upstream gets, with lower-case names."""
    nginx.upstream.received_requests.clear()
    assert nginx.request(method, path, b"{}" if method == "POST" else None, **headers)[0] == 200
    (recorded,) = nginx.upstream.received_requests
    return {name.lower(): value for name, value in recorded[2].items()}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/invocations"),
        ("POST", "/endpoints/any/invocations-response-stream"),
        ("GET", "/invocations-bidirectional-stream"),
        ("POST", "/v2/models/m/infer"),
        ("GET", "/metrics"),
        ("POST", "/models"),
    ],
)
def test_the_upstream_gets_the_keys_name_and_never_the_key(nginx: Front, method: str, path: str) -> None:
    for headers in (
        {"x_api_key": KEY},
        {"Authorization": f"Bearer {KEY}"},
        {"Authorization": f"BEARER {KEY}", "x_api_key": KEY},
    ):
        forwarded = forwarded_headers(nginx, method, path, X_Trireme_Key_Name="forged", **headers)
        assert forwarded["x-trireme-key-name"] == "alice"
        assert not [name for name, value in forwarded.items() if KEY in value]
        assert "authorization" not in forwarded


def test_an_authorization_header_of_another_scheme_is_forwarded_unchanged(nginx: Front) -> None:
    signature = "AWS4-HMAC-SHA256 Credential=a/b"
    headers = {"Authorization": signature, "x_api_key": KEY}
    assert forwarded_headers(nginx, "POST", "/invocations", **headers)["authorization"] == signature


@pytest.mark.parametrize("path", ["/ping", "/"])
def test_open_routes_forward_no_key_and_no_forged_name(nginx: Front, path: str) -> None:
    forwarded = forwarded_headers(nginx, "GET", path, x_api_key=KEY, X_Trireme_Key_Name="forged")
    assert not [name for name, value in forwarded.items() if KEY in value or value == "forged"]


def test_a_box_without_keys_drops_the_key_name_header_and_with_sessions_gives_the_callers_address() -> None:
    forged = {"X_Trireme_Key_Name": "forged", "X_Trireme_Address": "forged", "x_api_key": "theirs"}
    with tempfile.TemporaryDirectory(prefix="t-") as name, running_nginx(Path(name), sessions=True) as nginx:
        for method, path in (("POST", "/invocations"), ("GET", "/invocations-bidirectional-stream")):
            forwarded = forwarded_headers(nginx, method, path, **forged)
            assert "x-trireme-key-name" not in forwarded
            assert forwarded["x-api-key"] == "theirs"
            # nginx writes an IPv4 address so if it listens on an IPv6 one; for the router both are one caller.
            assert caller_network(forwarded["x-trireme-address"]) == "127.0.0.1"


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("with_keys", [False, True])
@pytest.mark.parametrize("cors", [False, True])
def test_nginx_accepts_every_combination_of_locks(
    tmp_path: Path, tls: bool, with_keys: bool, cors: bool
) -> None:
    certificate, key = certificate_files.write(tmp_path)
    (tmp_path / "keys").write_text(keys.format_line("alice", KEY))
    settings = replace(
        Settings(),
        tls_certificate=certificate if tls else None,
        tls_key=key if tls else None,
        api_keys_file=tmp_path / "keys" if with_keys else None,
        cors_origins=("https://a.example", "http://[::1]:3000") if cors else (),
    )
    box = make_box(tmp_path)
    prepare_access(settings, box, ())
    assert NGINX is not None
    front.prepare_nginx(NGINX, settings, box)  # runs nginx -t on the configuration


@pytest.mark.parametrize(
    "end",
    [
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"Content-Length: 2000000\r\nExpect: 100-continue\r\n\r\n",
    ],
)
def test_a_chunked_or_expected_body_is_refused_without_a_key(nginx: Front, end: bytes) -> None:
    head = b"POST /invocations HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    # nginx keeps the connection for five seconds, in which it discards the body.
    with socket.create_connection(("127.0.0.1", nginx.port), timeout=20) as connection:
        connection.sendall(head + end)
        assert connection.recv(99).startswith(b"HTTP/1.1 401")


def test_each_of_two_pipelined_requests_needs_a_key(nginx: Front) -> None:
    request_with_key = b"GET /metrics HTTP/1.1\r\nHost: a\r\nx-api-key: %s\r\n\r\n" % KEY.encode()
    request_without_key = b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    responses = nginx.send(request_with_key + request_without_key)
    assert responses.startswith(b"HTTP/1.1 200")
    assert responses.count(b"HTTP/1.1 401") == 1
