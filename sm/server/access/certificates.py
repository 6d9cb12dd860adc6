"""Check a certificate and its private key by a handshake in memory, and copy them for nginx.

nginx reads copies in the run folder, so that it never sees half of a replacement, and so that a front that
is started again finds a pair that works, whatever has become of the files.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

#: Names of the copies.
CERTIFICATE, KEY = "certificate.pem", "key.pem"
#: A chain of ten certificates has about 20 KiB.
MAX_FILE_BYTES = 2**20


class CertificateError(ValueError):
    """The pair cannot be used. The sentence has nothing of what the files contain."""


@dataclass(frozen=True)
class KeyPair:
    """What the two files contain, in PEM."""

    certificate: bytes
    key: bytes


def read(certificate: Path, key: Path) -> KeyPair:
    """The contents of both files; :class:`CertificateError` if one cannot be read."""
    return KeyPair(_read(certificate), _read(key))


def _read(path: Path) -> bytes:
    if path.exists() and not path.is_file():  # a fifo would be waited for
        raise CertificateError(f"{path} is not a file")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise CertificateError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return content


def install(pair: KeyPair, folder: Path, origin: tuple[Path, Path]) -> str:
    """Put a pair that works where nginx reads it; a warning if callers will refuse it, else nothing.

    ``origin``: the paths that errors name. :class:`CertificateError` leaves what is there as it is.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as staging:
        staged = Path(staging)
        _write_private(staged / CERTIFICATE, pair.certificate)
        _write_private(staged / KEY, pair.key)
        warning = check(staged / CERTIFICATE, staged / KEY, origin)
        for name in (CERTIFICATE, KEY):
            (staged / name).replace(folder / name)
    return warning


def check(certificate: Path, key: Path, origin: tuple[Path, Path]) -> str:
    """Try the pair. The warning is empty if the certificate and its chain are valid now, and for servers."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An encrypted key is an error, not a question at the terminal.
        server.load_cert_chain(certificate, key, password=lambda: b"")
    except (ssl.SSLError, ValueError, OSError) as error:
        raise CertificateError(_load_error(error, certificate, origin)) from None
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    # Trusts the certificate itself: who issued it is for callers to judge.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)
    try:
        _handshake(server, client)
    except ssl.SSLCertVerificationError as error:
        return f"callers will refuse {origin[0]}: {error.verify_message}"
    except ssl.SSLError as error:
        raise CertificateError(f"{origin[0]} cannot be used: {error.reason}") from None
    return ""


def server_context(folder: Path) -> ssl.SSLContext:
    """The server's side of handshakes with the copies in ``folder``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    return context


def _load_error(error: Exception, certificate: Path, origin: tuple[Path, Path]) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"the key {origin[1]} does not belong to the certificate {origin[0]}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
    except (ssl.SSLError, OSError):
        return f"{origin[0]} is no certificate in PEM"
    reason = str(getattr(error, "reason", ""))
    if reason.endswith(("_TOO_SMALL", "_TOO_WEAK")):
        return f"{origin[0]} cannot be used: {reason.replace('_', ' ').lower()}"
    return f"{origin[1]} is no private key in PEM without a passphrase, of the certificate {origin[0]}"


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Until both are done; :class:`ssl.SSLError` from whoever gives up."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
