"""Reach S3: an address, a client of boto3, and what its errors mean."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from sm.errors import BadInput, Forbidden, NotFound, NotReady, StartError, StorageFailed

log = logging.getLogger(__name__)
SCHEME = "s3://"
#: Seconds to connect, and between two bytes of an answer. A fetch of models ends within 30 s if S3 is silent.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 3, 6
ATTEMPTS = 2


@dataclass(frozen=True)
class S3Uri:
    """A bucket and a key; the key is empty for the whole bucket."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> S3Uri:
        """Parse a URI.

        Raises:
            ValueError: It does not begin with ``s3://``, or has no bucket.
        """
        bucket, _, key = text.removeprefix(SCHEME).partition("/")
        if not text.startswith(SCHEME) or not bucket:
            raise ValueError(f"{text!r} is not an S3 address: s3://BUCKET/KEY")
        return cls(bucket, key)

    @property
    def prefix(self) -> str:
        """The beginning of the keys of a folder's objects."""
        return f"{self.key.rstrip('/')}/" if self.key else ""

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


def open_client(subject: str, connections: int) -> Any:
    """Return boto3's client for S3. Raises :class:`StartError` without boto3, which ``subject`` needs."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise StartError(
            f"{subject} needs boto3, which is not installed: pip install 'trireme-serving[s3]'."
        ) from None
    # They log keys and signatures at lower levels.
    for name in ("boto3", "botocore", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        max_pool_connections=connections,
    )
    return boto3.client("s3", config=config)


def is_passing(status: int) -> bool:
    """True if a host is too busy, or broken for now."""
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def to_trireme_error(error: Exception, address: S3Uri) -> Exception:
    """Translate an error of boto3 into a sentence about the address."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    if isinstance(error, ClientError):
        code = error.response["Error"]["Code"]
        status = error.response["ResponseMetadata"].get("HTTPStatusCode", 500)
        if status == 404:
            return NotFound(f"{address} does not exist ({code})")
        if status == 403:
            return Forbidden(f"the box's role may not use {address} ({code})")
        if is_passing(status) or code in ("SlowDown", "RequestTimeout"):
            return NotReady(f"S3 does not answer for {address} ({code})")
        return BadInput(f"S3 refuses {address} ({code})")
    if isinstance(error, NoCredentialsError):
        return Forbidden(f"the box has no AWS credentials to reach {address} with")
    if isinstance(error, BotoCoreError):
        return NotReady(f"S3 cannot be reached for {address} ({type(error).__name__})")
    if isinstance(error, MemoryError):
        return error
    # For example, a header with an invalid number.
    log.error("boto3 cannot read the answer of S3", exc_info=error)
    return StorageFailed(f"the answer of S3 for {address} cannot be read ({type(error).__name__})")
