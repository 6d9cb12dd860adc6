"""TLS at nginx: what is spoken where, and what happens when the certificate's files change."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Iterator

import pytest
import requests

from tests.support import certificates as certificate_files
from tests.support.access_routes import CLOSED
from tests.support.boxes import wait_until
from tests.support.locked_boxes import LockedBox


def handshake(locked: LockedBox, *options: str) -> subprocess.CompletedProcess[str]:
    """What OpenSSL's own client says."""
    address = ["-connect", f"127.0.0.1:{locked.tls_port}", "-servername", "localhost"]
    return subprocess.run(
        ["openssl", "s_client", *address, *options],
        input="",
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def curl(locked: LockedBox, path: str, *options: str) -> str:
    """A request by curl, which trusts the certificate of the box and no other."""
    trust = ["--cacert", str(locked.certificate), "--resolve", f"localhost:{locked.tls_port}:127.0.0.1"]
    completed = subprocess.run(
        ["curl", "-sS", *trust, *options, f"https://localhost:{locked.tls_port}{path}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def served(locked: LockedBox) -> bytes | None:
    """The certificate that is served."""
    with locked.connect() as connection:
        return connection.getpeercert(binary_form=True)


def wait_for(locked: LockedBox, certificate: bytes) -> None:
    """Until it is served by every worker: for a moment there are old and new ones."""
    wait_until(lambda: all(served(locked) == certificate for _ in range(10)), description="the certificate")


@pytest.fixture
def first(locked: LockedBox) -> Iterator[bytes]:
    """The first certificate, which is served again at the end."""
    files = (locked.certificate, locked.certificate_key)
    contents = [file.read_bytes() for file in files]
    certificate = ssl.PEM_cert_to_DER_cert(contents[0].decode())
    yield certificate
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    wait_for(locked, certificate)


def test_curl_trusts_the_certificate_and_is_answered(locked: LockedBox) -> None:
    assert curl(locked, "/ping", "-o", "/dev/null", "-w", "%{http_code}") == "200"
    body = '{"modelname":"probe","payload":{"numbers":[1]}}'
    headers = ("-H", f"x-api-key: {locked.key}", "-H", "Content-Type: application/json")
    assert json.loads(curl(locked, "/invocations", *headers, "-d", body))["result"] == [1]


def test_http_2_is_spoken_where_it_is_on(locked: LockedBox) -> None:
    shown = ("-o", "/dev/null", "-w", "%{http_version} %{http_code}", "-H", f"x-api-key: {locked.key}")
    assert curl(locked, "/models", "--http2", *shown) == "2 200"
    assert curl(locked, "/models", "--http1.1", *shown) == "1.1 200"
    assert curl(locked, "/models", "--http2", *shown[:4]) == "2 401"


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_tls_1_2_and_1_3_are_spoken(locked: LockedBox, version: str) -> None:
    completed = handshake(locked, version)
    assert completed.returncode == 0, completed.stderr
    assert "Cipher is (NONE)" not in completed.stdout


@pytest.mark.parametrize(
    "options",
    [
        ("-tls1_1", "-cipher", "ALL:@SECLEVEL=0"),
        ("-tls1", "-cipher", "ALL:@SECLEVEL=0"),
        ("-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA"),
        ("-tls1_2", "-cipher", "AES128-GCM-SHA256:AES256-GCM-SHA384"),
    ],
)
def test_old_versions_and_weak_ciphers_are_refused(locked: LockedBox, options: tuple[str, ...]) -> None:
    completed = handshake(locked, *options)
    assert completed.returncode != 0
    assert "alert" in completed.stderr


@pytest.mark.parametrize(("method", "path"), [row for row in CLOSED if row[1] != "//ping"] + [("GET", "/")])
def test_without_tls_there_is_ping_alone(locked: LockedBox, method: str, path: str) -> None:
    headers = {"x-api-key": locked.key}
    response = requests.request(method, locked.box.url + path, headers=headers, timeout=10)
    assert response.status_code == 403
    assert response.json()["code"] == "forbidden"
    assert str(locked.tls_port) in response.json()["error"]


def test_ping_needs_neither_tls_nor_a_key(locked: LockedBox) -> None:
    assert requests.get(f"{locked.box.url}/ping", timeout=5).status_code == 200
    assert requests.post(f"{locked.box.url}/ping", timeout=5).status_code == 200


def test_plain_http_at_the_port_with_tls_is_told_so(locked: LockedBox) -> None:
    response = requests.get(f"http://127.0.0.1:{locked.tls_port}/ping", timeout=5)
    assert response.status_code == 400
    assert response.json()["code"] == "bad_input"


def test_a_new_certificate_is_served_without_a_restart(locked: LockedBox, first: bytes) -> None:
    nginx = locked.box.child("nginx")
    with locked.connect() as begun:
        begun.sendall(b"GET /ping HTTP/1.1\r\n")
        certificate_files.write(locked.certificate.parent)
        wait_for(locked, ssl.PEM_cert_to_DER_cert(locked.certificate.read_text()))
        # A request that has begun is finished.
        begun.sendall(b"Host: localhost\r\nConnection: close\r\n\r\n")
        assert begun.recv(65536).startswith(b"HTTP/1.1 200")
    assert locked.box.child("nginx") == nginx
    locked.box.wait_for_log("the certificate was replaced")


@pytest.mark.parametrize("broken", ["certificate", "key", "missing"])
def test_a_broken_pair_changes_nothing_not_even_when_nginx_is_started_again(
    locked: LockedBox, first: bytes, broken: str
) -> None:
    reported = locked.box.log.read_text().count("the certificate stays as it was")
    if broken == "certificate":
        locked.certificate.write_text("garbage")
    elif broken == "key":
        other = certificate_files.write(locked.certificate.parent, "other")
        locked.certificate_key.write_bytes(other[1].read_bytes())
    else:
        locked.certificate.unlink()
    wait_until(
        lambda: locked.box.log.read_text().count("the certificate stays as it was") > reported,
        description="a word of it",
    )
    locked.box.kill_and_wait_for_restart("nginx")
    assert served(locked) == first
    assert "PRIVATE KEY" not in locked.box.log.read_text()
