"""What goes on behind nginx from a request with a key: its name, and never the key."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sm.server.access import keys, setup
from sm.server.supervisor import front
from sm.settings import HERE, Settings
from tests.support import certificates as certificate_files
from tests.support.boxes import wait_until
from tests.support.nginx_front import NGINX, Front, error, make_box, running

pytestmark = pytest.mark.skipif(NGINX is None, reason="there is no nginx")
KEY = keys.generate()


@pytest.fixture(scope="module")
def nginx() -> Iterator[Front]:
    """The real nginx and the real checker, before servers that write down what they get."""
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        run = Path(name)
        box, file = make_box(run), run / "keys"
        file.write_text(keys.format_line("alice", KEY) + "\n")
        box.save()
        setup.prepare(replace(Settings(), api_keys_file=file), box)
        checker = subprocess.Popen(
            [sys.executable, "-m", "sm.server.access.checker"],
            cwd=HERE,
            env={**os.environ, "TRIREME_RUN_DIR": name, "TRIREME_API_KEYS_FILE": str(file)},
        )
        try:
            wait_until(box.keys_socket.exists)
            with running(run, api_keys_file=file) as started:
                yield started
        finally:
            checker.terminate()
            checker.wait(60)


def sent_on(nginx: Front, method: str, path: str, **headers: str) -> dict[str, str]:
    """The headers that arrive behind nginx, names in lower case."""
    nginx.upstream.seen.clear()
    assert nginx.ask(method, path, b"{}" if method == "POST" else None, **headers)[0] == 200
    (seen,) = nginx.upstream.seen
    return {name.lower(): value for name, value in seen[2].items()}


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
@pytest.mark.parametrize(
    "headers",
    [
        {"x_api_key": KEY},
        {"Authorization": f"Bearer {KEY}"},
        {"Authorization": f"BEARER {KEY}", "x_api_key": KEY},
    ],
)
def test_the_name_goes_on_and_the_key_does_not(
    nginx: Front, method: str, path: str, headers: dict[str, str]
) -> None:
    seen = sent_on(nginx, method, path, X_Trireme_Key_Name="forged", **headers)
    assert seen["x-trireme-key-name"] == "alice"
    assert not [name for name, value in seen.items() if KEY in value]
    assert "authorization" not in seen


def test_another_authorization_goes_on_as_it_is(nginx: Front) -> None:
    signature = "AWS4-HMAC-SHA256 Credential=a/b"
    assert sent_on(nginx, "POST", "/invocations", Authorization=signature, x_api_key=KEY)[
        "authorization"
    ] == (signature)


@pytest.mark.parametrize("path", ["/ping", "/"])
def test_what_is_open_gets_no_key_either(nginx: Front, path: str) -> None:
    seen = sent_on(nginx, "GET", path, x_api_key=KEY, X_Trireme_Key_Name="forged")
    assert not [name for name, value in seen.items() if KEY in value or value == "forged"]


def test_without_keys_nobody_can_say_who_he_is(tmp_path_factory: pytest.TempPathFactory) -> None:
    with tempfile.TemporaryDirectory(prefix="t-") as name, running(Path(name)) as nginx:
        seen = sent_on(nginx, "POST", "/invocations", X_Trireme_Key_Name="forged", x_api_key="theirs")
        assert "x-trireme-key-name" not in seen
        assert seen["x-api-key"] == "theirs"


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("with_keys", [False, True])
@pytest.mark.parametrize("cors", [False, True])
def test_any_of_the_locks_may_be_on(tmp_path: Path, tls: bool, with_keys: bool, cors: bool) -> None:
    certificate, key = certificate_files.write(tmp_path)
    (tmp_path / "keys").write_text(keys.format_line("alice", KEY))
    settings = replace(
        Settings(),
        tls_certificate=certificate if tls else None,
        tls_key=key if tls else None,
        http2=tls,
        api_keys_file=tmp_path / "keys" if with_keys else None,
        cors_origins=("https://a.example", "http://[::1]:3000") if cors else (),
    )
    box = make_box(tmp_path)
    setup.prepare(settings, box)
    assert NGINX is not None
    front.prepare(NGINX, settings, box)  # nginx itself checks its configuration


def test_a_body_of_chunks_is_refused_without_a_key(nginx: Front) -> None:
    raw = nginx.send(
        b"POST /invocations HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b"2\r\n{}\r\n0\r\n\r\n"
    )
    assert raw.startswith(b"HTTP/1.1 401")


def test_nobody_is_told_to_go_on_with_a_body_before_the_key_is_known(nginx: Front) -> None:
    raw = nginx.send(
        b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\nExpect: 100-continue\r\n"
        b"Connection: close\r\n\r\n"
    )
    assert raw.startswith(b"HTTP/1.1 401")


def test_two_requests_in_one_packet_are_each_asked_for_a_key(nginx: Front) -> None:
    good = b"GET /metrics HTTP/1.1\r\nHost: a\r\nx-api-key: %s\r\n\r\n" % KEY.encode()
    bad = b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    raw = nginx.send(good + bad)
    assert raw.startswith(b"HTTP/1.1 200")
    assert raw.count(b"HTTP/1.1 401") == 1


def test_an_error_behind_the_check_is_the_requests_own(nginx: Front) -> None:
    nginx.upstream.status, nginx.upstream.body = 403, b'{"error":"mine"}'
    try:
        response = nginx.ask("POST", "/invocations", b"{}", x_api_key=KEY)
        assert response[::2] == (403, b'{"error":"mine"}')
        assert "www-authenticate" not in response[1]
        too_large = nginx.ask("POST", "/invocations", b"x", x_api_key=KEY, Content_Length=str(2**40))
        error(too_large, 413, "too_large")
    finally:
        nginx.upstream.status, nginx.upstream.body = 200, b'{"result":1}'
