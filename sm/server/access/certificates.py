"""Check a certificate and its private key by a handshake in memory, and copy them for nginx.

nginx reads copies in the run folder. So it never reads a half-replaced pair, and a restarted nginx finds a
valid pair, whatever happened to the originals.
"""

from __future__ import annotations

import os
import ssl
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sm.server.access.keys import Watched, read_bounded

#: Names of the copies.
CERTIFICATE, KEY = "certificate.pem", "key.pem"
#: Bytes; a chain of ten certificates has about 20 KiB.
MAX_FILE_BYTES = 2**20


class CertificateError(ValueError):
    """The pair cannot be used. The message contains nothing of the files."""


@dataclass(frozen=True)
class KeyPair:
    """The contents of the two files, in PEM."""

    certificate: bytes
    key: bytes


def read(certificate: Path, key: Path) -> KeyPair:
    """Read both files. Raises :class:`CertificateError`."""
    return KeyPair(*(read_bounded(file, MAX_FILE_BYTES, CertificateError) for file in (certificate, key)))


def install(pair: KeyPair, folder: Path, source_files: tuple[Path, Path]) -> str:
    """Check a pair and copy it for nginx. Returns a warning if callers will refuse it, else an empty text.

    ``source_files``: the certificate's and the key's path, for messages. :class:`CertificateError` leaves the
    installed pair unchanged.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as staging:
        staged = Path(staging)
        _write_private(staged / CERTIFICATE, pair.certificate)
        _write_private(staged / KEY, pair.key)
        warning = check(staged / CERTIFICATE, staged / KEY, source_files)
        for name in (CERTIFICATE, KEY):
            (staged / name).replace(folder / name)
    return warning


def check(certificate: Path, key: Path, source_files: tuple[Path, Path]) -> str:
    """Check the pair. The warning is empty if the chain is valid now, and valid for servers."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An encrypted key must be an error, not a prompt at the terminal.
        server.load_cert_chain(certificate, key, password=lambda: b"")
    except (ssl.SSLError, ValueError, OSError) as error:
        raise CertificateError(_load_error(error, certificate, source_files)) from None
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    # Trust the certificate itself: whether to trust its issuer is the callers' decision.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)
    try:
        _handshake(server, client)
    except ssl.SSLCertVerificationError as error:
        return f"callers will refuse {source_files[0]}: {error.verify_message}"
    except ssl.SSLError as error:
        raise CertificateError(f"{source_files[0]} cannot be used: {error.reason}") from None
    return ""


def server_context(folder: Path) -> ssl.SSLContext:
    """Create the TLS context for the copies in ``folder``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    return context


def _load_error(error: Exception, certificate: Path, source_files: tuple[Path, Path]) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"the key {source_files[1]} does not belong to the certificate {source_files[0]}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
    except (ssl.SSLError, OSError):
        return f"{source_files[0]} is not a certificate in PEM"
    reason = str(getattr(error, "reason", ""))
    if reason.endswith(("_TOO_SMALL", "_TOO_WEAK")):
        return f"{source_files[0]} cannot be used: {reason.replace('_', ' ').lower()}"
    certificate_file, key_file = source_files
    return (
        f"{key_file} is not a private key in PEM without a passphrase, of the certificate {certificate_file}"
    )


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Complete the handshake of both sides. Raises :class:`ssl.SSLError`."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def watch(
    files: tuple[Path, Path],
    folder: Path,
    reload: Callable[[], None],
    log: Callable[[str, str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Watched[KeyPair]:
    """Watch certificate and key: a new pair is copied to ``folder``, and ``reload`` makes nginx read it."""

    def use(pair: KeyPair) -> None:
        warning = install(pair, folder, files)
        reload()
        log("info", "the certificate was replaced")
        if warning:
            log("warning", warning)

    return Watched(
        read(folder / CERTIFICATE, folder / KEY),
        lambda: read(*files),
        use,
        lambda reason: log("warning", f"the certificate stays as it was: {reason}"),
        clock,
    )
