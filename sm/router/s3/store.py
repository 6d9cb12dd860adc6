"""Read and write objects of S3 within an invocation's time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

from sm.errors import (
    BadInput,
    Forbidden,
    NotFound,
    NotReady,
    StartError,
    StorageFailed,
    TooLarge,
    TriremeError,
)
from sm.router.s3.transfers import Transfers
from sm.router.s3.uris import parse_uri
from sm.s3_uri import S3Uri
from sm.settings import Settings

log = logging.getLogger(__name__)
#: Seconds to connect, and between two bytes of an answer.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 2, 10
MAX_ATTEMPTS = 2
#: Bytes of one read.
READ_BYTES = 2**18
T = TypeVar("T")


class Store:
    """Reads and writes the allowed objects in S3 with the boto3 ``client``.

    ``allowed``: buckets, or ``bucket/prefix``. ``largest``: bytes of an object that is read. Calls run on
    ``executor``, which must not be the one that records run on, for at most ``timeout_s``.
    """

    def __init__(
        self,
        allowed: Sequence[str],
        largest: int,
        executor: Executor,
        client: Any,
        timeout_s: float = Settings.s3_timeout,
    ) -> None:
        from sm.router.s3.connections import watch_connections

        watch_connections(client)
        self._allowed, self._largest = allowed, largest
        self._transfers, self._client = Transfers(executor, timeout_s), client

    def at(self, value: object, path: str) -> S3Uri:
        """Parse an address of the request and check that it is allowed."""
        return parse_uri(value, self._allowed, path)

    def read(self, place: S3Uri) -> bytes:
        """Read an object. Raises :class:`NotFound`, :class:`Forbidden`, :class:`TooLarge`,
        :class:`NotReady`.
        """
        return self._in_time(lambda: self._read(place), place)

    def write(self, place: S3Uri, body: bytes, content_type: str) -> None:
        """Write an object, replacing any that exists. Raises the same errors."""
        put = {"Bucket": place.bucket, "Key": place.key, "Body": body, "ContentType": content_type}
        self._in_time(lambda: self._client.put_object(**put), place)

    def _read(self, place: S3Uri) -> bytes:
        answer = self._client.get_object(Bucket=place.bucket, Key=place.key)
        with closing(answer["Body"]) as body:
            size = answer.get("ContentLength")
            if size is None:
                raise StorageFailed(f"S3 does not say how long {place} is")
            if size > self._largest:
                raise TooLarge(f"{place} has {size:,} bytes, this box takes {self._largest:,}")
            return b"".join(body.iter_chunks(READ_BYTES))

    def _in_time(self, call: Callable[[], T], place: S3Uri) -> T:
        try:
            return self._transfers.run(call)
        except TriremeError:
            raise
        except Exception as error:
            raise to_trireme_error(error, place) from None


def to_trireme_error(error: Exception, place: S3Uri) -> Exception:
    """Translate an error of boto3 for the caller."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    if isinstance(error, ClientError):
        return _to_trireme_error(error.response, place)
    if isinstance(error, NoCredentialsError):
        return Forbidden(f"the box has no AWS credentials to reach {place} with")
    if isinstance(error, BotoCoreError):
        return NotReady(f"S3 cannot be reached for {place} ({type(error).__name__})")
    if isinstance(error, MemoryError):
        return error
    # For example, a header with an invalid number.
    log.error("S3 answers what boto3 cannot read", exc_info=error)
    return StorageFailed(f"what S3 answers for {place} cannot be read ({type(error).__name__})")


def _to_trireme_error(response: Any, place: S3Uri) -> TriremeError:
    code, status = response["Error"]["Code"], response["ResponseMetadata"].get("HTTPStatusCode", 500)
    if status == 404:
        return NotFound(f"{place} is not there ({code})")
    if status == 403:
        return Forbidden(f"the box's role may not use {place} ({code})")
    if status >= 500 or code in ("SlowDown", "RequestTimeout"):
        return NotReady(f"S3 does not answer for {place} ({code})")
    return BadInput(f"S3 refuses {place} ({code})")


def open_store(settings: Settings) -> Store | None:
    """Open the store; None if no bucket is named, and then boto3 is not imported. :class:`StartError` without
    boto3.
    """
    if not settings.s3_buckets:
        return None
    executor, client = ThreadPoolExecutor(settings.s3_threads, "s3"), _client(settings.s3_threads)
    return Store(settings.s3_buckets, settings.max_body, executor, client, settings.s3_timeout)


def _client(threads: int) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise StartError(
            "TRIREME_S3_BUCKETS is set, but boto3 is not installed: pip install 'trireme-serving[deploy]'."
        ) from None
    # At lower levels they log keys and signatures.
    for name in ("boto3", "botocore", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": MAX_ATTEMPTS},
        max_pool_connections=threads,
    )
    return boto3.client("s3", config=config)
