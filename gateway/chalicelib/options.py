"""Every variable the gateway reads, in one table like the box's own (:mod:`sm.settings`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chalicelib.remote_servers import RemoteServers, Tls
from sm.errors import StartError
from sm.settings import HERE, boolean, folders, number, read_all, setting

from .short_names import ShortName, short_names

HASH = re.compile(r"[0-9a-f]{64}")


def comma_separated(text: str) -> tuple[str, ...]:
    """Words between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def prefix(text: str) -> str:
    """Check a prefix of S3 keys, which ends in a slash. An empty one would be the whole bucket."""
    if not text.endswith("/") or text.startswith("/") or ".." in text:
        raise ValueError("is not a prefix such as images/")
    return text


def prefixes(text: str) -> tuple[str, ...]:
    return tuple(prefix(part) for part in comma_separated(text))


def hashed_keys(text: str) -> Mapping[str, str]:
    """``name:sha256,...`` to hashes by name."""
    pairs = [part.partition(":") for part in comma_separated(text)]
    if not all(name and HASH.fullmatch(digest) for name, _, digest in pairs):
        raise ValueError("is not a list of NAME:SHA256, the hash in 64 lower-case hexadecimal digits")
    return {name: digest for name, _, digest in pairs}


# A wrong value of a list that guards something is not to be printed with the error.
SECRET = ("TRIREME_GATEWAY_KEYS",)


@dataclass(frozen=True)
class Options:
    """What the gateway runs with. Build one with :meth:`read`."""

    #: Serve the reference gateway's own contract for these short names of models: JSON, or the path of a file
    #: with it.
    short_names: Mapping[str, ShortName] | None = setting("TRIREME_GATEWAY_SHORT_NAMES", short_names, None)
    #: Where Triton's gRPC port is, HOST:PORT: one name, which may stand for several machines, or IP addresses
    #: separated by commas.
    triton: tuple[str, ...] = setting("TRIREME_GATEWAY_TRITON", comma_separated, ())
    #: The bucket of inputs, results and models; without one, payloads come in the body.
    bucket: str = setting("TRIREME_GATEWAY_BUCKET", str, "")
    #: Beginnings of the keys that a caller may name, separated by commas.
    inputs: tuple[str, ...] = setting("TRIREME_GATEWAY_INPUTS", prefixes, ("images/",))
    #: Where results are stored.
    results: str = setting("TRIREME_GATEWAY_RESULTS", prefix, "results/")
    #: Where the bucket has models, a folder each.
    models: str = setting("TRIREME_GATEWAY_MODELS", prefix, "models/")
    #: The folder that is Triton's model repository (a shared file system): models are copied there before
    #: they are loaded. Not set where Triton's repository is the bucket's folder itself.
    repository: Path | None = setting("TRIREME_GATEWAY_REPOSITORY", Path, None)
    #: Folders of client plugins, separated by colons.
    clients: tuple[Path, ...] = setting("TRIREME_GATEWAY_CLIENTS", folders, (HERE / "clients",))
    #: The API keys, hashed: NAME:SHA256, separated by commas. Behind API Gateway, which checks keys of its
    #: own, it may be left out; elsewhere the gateway does not start without.
    keys: Mapping[str, str] | None = setting("TRIREME_GATEWAY_KEYS", hashed_keys, None)
    #: Seconds a request may take. API Gateway waits for 29.
    timeout: float = setting("TRIREME_GATEWAY_TIMEOUT", number(0.1, 900, float), 25.0)
    #: The largest body or object in MiB.
    max_body_mb: float = setting("TRIREME_GATEWAY_MAX_MB", number(0.001, 1024, float), 25.0)
    #: Seconds in which a request's body must be there; else 408. For the gateway's own server.
    receive_timeout: float = setting("TRIREME_GATEWAY_RECEIVE_TIMEOUT", number(0.1, 900, float), 60.0)
    #: Least bytes a second of a body, after its first 5 seconds; else 408. For the gateway's own server.
    min_rate: int = setting("TRIREME_GATEWAY_MIN_RATE", number(1, 2**30), 16384)
    #: Requests that are worked on at once, and as many again that use S3. For the gateway's own server.
    threads: int = setting("TRIREME_GATEWAY_THREADS", number(1, 256), 8)
    #: Requests that may wait for a thread; further ones get 429. For the gateway's own server.
    queue: int = setting("TRIREME_GATEWAY_QUEUE", number(0, 10_000), 32)
    #: Memory for the bodies of all requests together, in MiB; over it 429. For the gateway's own server.
    buffer_mb: float = setting("TRIREME_GATEWAY_BUFFER_MB", number(0.001, 65536, float), 256.0)
    #: Memory for answers to the same content, in MiB; 0: none are kept.
    cache_mb: float = setting("TRIREME_GATEWAY_CACHE_MB", number(0, 4096, float), 0.0)
    #: Speak TLS to Triton.
    tls: bool = setting("TRIREME_GATEWAY_TLS", boolean, False)
    #: Whose certificates count, PEM; those that gRPC brings if not set.
    tls_ca: Path | None = setting("TRIREME_GATEWAY_TLS_CA", Path, None)
    #: This gateway's own certificate, PEM, if Triton asks.
    tls_certificate: Path | None = setting("TRIREME_GATEWAY_TLS_CERTIFICATE", Path, None)
    #: The key of that certificate, PEM.
    tls_key: Path | None = setting("TRIREME_GATEWAY_TLS_KEY", Path, None)
    #: The name in Triton's certificate, where it is not the address.
    tls_name: str = setting("TRIREME_GATEWAY_TLS_NAME", str, "")

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Options:
        """Read every variable; :class:`StartError` names the first with a bad value."""
        values = read_all(cls, environment, SECRET)
        return cls(**values).validate("AWS_LAMBDA_FUNCTION_NAME" in environment)

    def validate(self, in_lambda: bool) -> Options:
        """Rules that join two variables, and what must be there."""
        if self.repository and not self.bucket:
            raise StartError("TRIREME_GATEWAY_REPOSITORY needs TRIREME_GATEWAY_BUCKET.")
        if self.keys is None and not in_lambda:
            raise StartError("TRIREME_GATEWAY_KEYS is not set: without API Gateway nobody else checks keys.")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise StartError("TRIREME_GATEWAY_TLS_CERTIFICATE and TRIREME_GATEWAY_TLS_KEY belong together.")
        if any(self.results.startswith(start) or start.startswith(self.results) for start in self.inputs):
            raise StartError(
                "TRIREME_GATEWAY_RESULTS lies within TRIREME_GATEWAY_INPUTS, or the other way round."
            )
        return self

    @property
    def max_body(self) -> int:
        """Bytes."""
        return int(self.max_body_mb * 2**20)

    @property
    def buffer(self) -> int:
        """Bytes."""
        return int(self.buffer_mb * 2**20)

    @property
    def peers(self) -> RemoteServers:
        """The Tritons; :class:`StartError` for an address that is none or a PEM file that cannot be read."""
        if not self.triton:
            raise StartError("TRIREME_GATEWAY_TRITON is not set.")
        return RemoteServers.parse(self.triton, self._tls() if self.tls else None)

    def _tls(self) -> Tls:
        return Tls(_pem(self.tls_ca), _pem(self.tls_certificate), _pem(self.tls_key), self.tls_name)


def _pem(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}.") from None
