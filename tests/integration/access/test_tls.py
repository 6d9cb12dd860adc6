"""TLS at nginx: protocols, ports, and what happens when the certificate's files change."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import requests

from tests.integration.access.locked_boxes import ROUTES_THAT_NEED_A_KEY, LockedBox
from tests.support import certificates as certificate_files
from tests.support.boxes import wait_until


def curl(locked: LockedBox, path: str, *options: str) -> str:
    """Send a request with curl, which trusts only the box's certificate; return what it prints."""
    address = f"localhost:{locked.tls_port}"
    trust = ["--cacert", str(locked.certificate), "--resolve", f"{address}:127.0.0.1"]
    command = ["curl", "-sS", *trust, *options, f"https://{address}{path}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def served_certificate(locked: LockedBox) -> bytes | None:
    """The certificate that the box presents, as DER."""
    with locked.connect() as connection:
        return connection.getpeercert(binary_form=True)


def wait_until_served(locked: LockedBox, certificate: bytes) -> None:
    """Wait until every nginx worker serves it: for a moment old and new workers coexist."""
    wait_until(
        lambda: all(served_certificate(locked) == certificate for _ in range(10)),
        description="the certificate on every connection",
    )


@pytest.fixture
def original(locked: LockedBox) -> Iterator[bytes]:
    """The certificate that the box started with; it is restored after the test."""
    files = (locked.certificate, locked.certificate_key)
    contents = [file.read_bytes() for file in files]
    original = ssl.PEM_cert_to_DER_cert(contents[0].decode())
    yield original
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    wait_until_served(locked, original)


def test_http_2_is_served_when_it_is_on(locked: LockedBox) -> None:
    options = ("-o", "/dev/null", "-w", "%{http_version} %{http_code}", "-H", f"x-api-key: {locked.key}")
    assert curl(locked, "/models", "--http2", *options) == "2 200"
    assert curl(locked, "/models", "--http1.1", *options) == "1.1 200"
    assert curl(locked, "/models", "--http2", *options[:4]) == "2 401"


OLD, WEAK = ("-cipher", "ALL:@SECLEVEL=0"), "AES128-GCM-SHA256:AES256-GCM-SHA384"


@pytest.mark.parametrize(
    ("options", "accepted"),
    [
        (("-tls1_3",), True),
        (("-tls1_2",), True),
        (("-tls1_1", *OLD), False),
        (("-tls1", *OLD), False),
        (("-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA"), False),
        (("-tls1_2", "-cipher", WEAK), False),
    ],
)
def test_tls_1_2_and_1_3_are_accepted(locked: LockedBox, options: tuple[str, ...], accepted: bool) -> None:
    """Not with weak ciphers. As OpenSSL's command-line client finds."""
    address = ["-connect", f"127.0.0.1:{locked.tls_port}", "-servername", "localhost"]
    command = ["openssl", "s_client", *address, *options]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=20, check=False)
    assert (done.returncode == 0) is accepted


@pytest.mark.parametrize(("method", "path"), [*ROUTES_THAT_NEED_A_KEY, ("GET", "/")])
def test_the_port_without_tls_serves_ping_only(locked: LockedBox, method: str, path: str) -> None:
    headers = {"x-api-key": locked.key}
    response = requests.request(method, locked.box.url + path, headers=headers, timeout=10)
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    assert str(locked.tls_port) in response.json()["error"]


def test_ping_needs_neither_tls_nor_a_key_but_its_own_port(
    locked: LockedBox,
) -> None:
    assert requests.post(f"{locked.box.url}/ping", timeout=5).status_code == 200
    plain = requests.get(f"{locked.box.url}/ping", timeout=5)
    assert (plain.status_code, "Strict-Transport-Security" in plain.headers) == (200, False)
    # Over TLS, browsers are told to come back with it.
    for path in ("/ping", "/", "/no-such-path"):
        head = curl(locked, path, "--head").lower()
        assert head.count("strict-transport-security: max-age=31536000") == 1, (path, head)
    response = requests.get(f"http://127.0.0.1:{locked.tls_port}/ping", timeout=5)
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")


def test_a_new_certificate_is_served_without_a_restart(locked: LockedBox, original: bytes) -> None:
    """A request that was under way is finished: the last that got the old one, as a head may take three seconds."""
    nginx_before, begun = locked.box.child("nginx"), list[ssl.SSLSocket]()

    def begin_with_new_certificate() -> bool:
        begun.append(stack.enter_context(locked.connect()))
        begun[-1].sendall(b"GET /ping HTTP/1.1\r\n")
        return begun[-1].getpeercert(binary_form=True) != original

    with ExitStack() as stack:
        assert not begin_with_new_certificate()
        certificate_files.write(locked.certificate.parent)
        wait_until(begin_with_new_certificate, description="the new certificate")
        begun[-2].sendall(b"Host: localhost\r\nConnection: close\r\n\r\n")
        assert begun[-2].recv(65536).startswith(b"HTTP/1.1 200")
    wait_until_served(locked, ssl.PEM_cert_to_DER_cert(locked.certificate.read_text()))
    assert locked.box.child("nginx") == nginx_before


def test_a_broken_pair_leaves_the_old_certificate(locked: LockedBox, original: bytes) -> None:
    before = locked.warnings(locked.certificate)
    other_pair = certificate_files.write(locked.certificate.parent, "other")
    locked.certificate_key.write_bytes(other_pair[1].read_bytes())
    wait_until(lambda: locked.warnings(locked.certificate) > before, description="a warning")
    locked.box.kill_and_wait_for_restart("nginx")
    assert served_certificate(locked) == original
    assert "PRIVATE KEY" not in locked.box.log.read_text()
