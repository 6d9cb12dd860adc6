"""Mistakes in TLS, API keys or CORS stop the start with one sentence, or are logged as warnings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from sm.errors import StartError
from sm.run_state import Box
from sm.server.access import certificates
from sm.server.access.certificates import CertificateError
from sm.server.startup import prepare_access
from sm.server.supervisor import nginx as front
from sm.settings import Settings
from tests.support import certificates as certificate_files


def prepare(folder: Path, **settings: Any) -> list[str]:
    box = Box("t", folder, folder, 1, 2, 3, "nginx", 0)
    version = settings.pop("version", (2, 73))
    return prepare_access(Settings(**settings), box, version)


def test_a_certificate_or_key_file_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    certificate, _ = certificate_files.write(tmp_path, "one")
    _, key = certificate_files.write(tmp_path, "other")
    for settings in (
        {"tls_certificate": certificate, "tls_key": key},
        {"api_keys_file": tmp_path / "none"},
    ):
        with pytest.raises(StartError) as raised:
            prepare(tmp_path, **settings)
        assert all(str(path) in str(raised.value) for path in settings.values())


TLS_FILES = {"TRIREME_TLS_CERTIFICATE": "/c", "TRIREME_TLS_KEY": "/k"}


@pytest.mark.parametrize(
    "variables",
    [
        {"TRIREME_TLS_CERTIFICATE": "/c"},
        {"TRIREME_TLS_KEY": "/k"},
        {"TRIREME_TLS_PORT": "8080", **TLS_FILES},
        {"TRIREME_RATE_LIMIT": "5"},
        *(
            {"TRIREME_CORS_ORIGINS": origins}
            for origins in ("*", "https://a.example/path", 'https://a.example" 1; evil', "null")
        ),
    ],
)
def test_contradictory_or_invalid_settings_are_refused_by_name(variables: dict[str, str]) -> None:
    with pytest.raises(StartError, match=next(iter(variables))):
        Settings.read(variables)


@pytest.mark.parametrize(
    "variables",
    [
        TLS_FILES,
        {"TRIREME_API_KEYS_FILE": "/keys"},
        {"TRIREME_CORS_ORIGINS": "https://a.example"},
    ],
)
def test_without_nginx_no_box_starts_unprotected(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StartError, match=next(iter(variables))):
        front.find_nginx(Settings.read({**variables, "TRIREME_NGINX": "off"}))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(front, "NGINX_PATHS", str(tmp_path))
    with pytest.raises(StartError, match="nginx"):
        front.find_nginx(Settings.read(variables))


def install(folder: Path, files: tuple[Path, Path]) -> str:
    return certificates.install(certificates.read(*files), folder / "tls", files)


@pytest.mark.parametrize(
    ("certificate", "warning"), [({}, ""), ({"days": -1}, "expired"), ({"client_only": True}, "purpose")]
)
def test_a_certificate_is_copied_privately(tmp_path: Path, certificate: dict[str, Any], warning: str) -> None:
    said = install(tmp_path, certificate_files.write(tmp_path, **certificate))
    assert (bool(said), warning in said) == (bool(warning), True)
    folder = tmp_path / "tls"
    assert sorted(path.name for path in folder.iterdir()) == ["certificate.pem", "key.pem"]
    assert {path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())} == {0o700, 0o600}


def test_a_certificate_is_accepted_with_and_without_its_chain(tmp_path: Path) -> None:
    authority, authority_key = certificate_files.write(tmp_path, "authority", authority=True)
    issuer_key = load_pem_private_key(authority_key.read_bytes(), None)
    issuer_name = x509.load_pem_x509_certificate(authority.read_bytes()).subject
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    certificate, key = certificate_files.write(tmp_path, issuer=(issuer_name, issuer_key))
    assert install(tmp_path, (certificate, key)) == ""
    certificate.write_bytes(certificate.read_bytes() + authority.read_bytes())
    assert install(tmp_path, (certificate, key)) == ""
    certificate.write_bytes(authority.read_bytes() + certificate.read_bytes())
    with pytest.raises(CertificateError):
        install(tmp_path, (certificate, key))


@pytest.mark.parametrize("fault", ["mismatch", "garbage", "garbage key", "fifo", "missing", "short key"])
def test_an_unusable_pair_is_refused_and_the_installed_one_stays(tmp_path: Path, fault: str) -> None:
    installed_pair = certificate_files.write(tmp_path)
    install(tmp_path, installed_pair)
    short = rsa.generate_private_key(65537, 1024) if fault == "short key" else None
    certificate, key = certificate_files.write(tmp_path, "next", key=short)
    if fault == "mismatch":
        key = installed_pair[1]
    elif fault == "garbage":
        certificate.write_text("-----BEGIN CERTIFICATE-----\nsecret\n")
    elif fault == "garbage key":
        key.write_text("-----BEGIN PRIVATE KEY-----\nsecret\n")
    elif fault in ("fifo", "missing"):
        key.unlink()
    if fault == "fifo":
        os.mkfifo(key)
    with pytest.raises(CertificateError) as raised:
        install(tmp_path, (certificate, key))
    assert (str(tmp_path / "next") in str(raised.value), "secret" in str(raised.value)) == (True, False)
    assert (tmp_path / "tls" / "certificate.pem").read_bytes() == installed_pair[0].read_bytes()
    assert len(list((tmp_path / "tls").iterdir())) == 2


def test_open_triton_ports_without_tls_or_keys_are_warned_about(tmp_path: Path) -> None:
    certificate, key = certificate_files.write(tmp_path)
    opened = {"allow_grpc": True, "triton_ports": "loopback"}
    warnings = prepare(tmp_path, tls_certificate=certificate, tls_key=key, **opened)
    for name, warning in zip(("SAGEMAKER_TRITON_ALLOW_GRPC", "TRIREME_TRITON_PORTS"), warnings, strict=True):
        assert name in warning


def test_a_triton_with_known_holes_is_opened_to_everybody_only_by_who_accepts_them(tmp_path: Path) -> None:
    for version in ((2, 51), (2, 72)):
        with pytest.raises(StartError, match=rf"{version[0]}\.{version[1]}"):
            prepare(tmp_path, triton_ports="all", version=version)
    assert prepare(tmp_path, triton_ports="all", version=(2, 73)) == []
    assert prepare(tmp_path, triton_ports="all") == prepare(tmp_path, version=(2, 51)) == []
    for opening in ({"triton_ports": "all-with-known-holes"}, {"allow_grpc": True}):
        (warning,) = prepare(tmp_path, version=(2, 51), **opening)
        assert "2.51" in warning
