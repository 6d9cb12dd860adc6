"""Read and write objects of S3 within an invocation's time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

from sm.client.payloads import Payload
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
from sm.router.s3.uris import URI, S3Uri, parse_uri
from sm.settings import Settings

log = logging.getLogger(__name__)
#: Seconds to connect, and between two bytes of an answer.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 2, 10
MAX_ATTEMPTS = 2
#: Bytes of one read.
READ_BYTES = 2**18
T = TypeVar("T")


class Store:
    """Reads and writes the allowed objects in S3.

    Args:
        allowed: Buckets, or ``bucket/prefix``.
        max_bytes: Of an object that is read.
        executor: Runs the calls. It must not be the executor of the records.
        client: Of boto3.
        timeout_s: For one call.
    """

    def __init__(
        self,
        allowed: Sequence[str],
        max_bytes: int,
        executor: Executor,
        client: Any,
        timeout_s: float = Settings.s3_timeout,
    ) -> None:
        from sm.router.s3.connections import watch_connections

        watch_connections(client)
        self._allowed, self._max_bytes = allowed, max_bytes
        self._transfers, self._client = Transfers(executor, timeout_s), client

    def parse_address(self, value: object, path: str) -> S3Uri:
        """Parse an address of the request and check that it is allowed."""
        return parse_uri(value, self._allowed, path)

    def read(self, address: S3Uri) -> bytes:
        """Read an object.

        Raises:
            NotFound: It does not exist.
            Forbidden: The box's role may not read it.
            TooLarge: It is larger than ``max_bytes``.
            NotReady: S3 does not answer in time.
        """
        return self._run(lambda: self._read(address), address)

    def write(self, address: S3Uri, body: bytes, content_type: str) -> None:
        """Write an object, replacing any that exists. Raises the same errors."""
        request = {"Bucket": address.bucket, "Key": address.key, "Body": body, "ContentType": content_type}
        self._run(lambda: self._client.put_object(**request), address)

    def _read(self, address: S3Uri) -> bytes:
        answer = self._client.get_object(Bucket=address.bucket, Key=address.key)
        with closing(answer["Body"]) as body:
            size = answer.get("ContentLength")
            if size is None:
                raise StorageFailed(f"S3 does not say how long {address} is")
            if size > self._max_bytes:
                raise TooLarge(f"{address} has {size:,} bytes, this box takes {self._max_bytes:,}")
            return b"".join(body.iter_chunks(READ_BYTES))

    def _run(self, call: Callable[[], T], address: S3Uri) -> T:
        try:
            return self._transfers.run(call)
        except TriremeError:
            raise
        except Exception as error:
            raise to_trireme_error(error, address) from None


def to_trireme_error(error: Exception, address: S3Uri) -> Exception:
    """Translate an error of boto3 for the caller."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    if isinstance(error, ClientError):
        return _to_trireme_error(error.response, address)
    if isinstance(error, NoCredentialsError):
        return Forbidden(f"the box has no AWS credentials to reach {address} with")
    if isinstance(error, BotoCoreError):
        return NotReady(f"S3 cannot be reached for {address} ({type(error).__name__})")
    if isinstance(error, MemoryError):
        return error
    # For example, a header with an invalid number.
    log.error("boto3 cannot read the answer of S3", exc_info=error)
    return StorageFailed(f"the answer of S3 for {address} cannot be read ({type(error).__name__})")


def _to_trireme_error(response: Any, address: S3Uri) -> TriremeError:
    code, status = response["Error"]["Code"], response["ResponseMetadata"].get("HTTPStatusCode", 500)
    if status == 404:
        return NotFound(f"{address} does not exist ({code})")
    if status == 403:
        return Forbidden(f"the box's role may not use {address} ({code})")
    if status >= 500 or code in ("SlowDown", "RequestTimeout"):
        return NotReady(f"S3 does not answer for {address} ({code})")
    return BadInput(f"S3 refuses {address} ({code})")


def open_store(settings: Settings) -> Store | None:
    """Open the store; None if the settings name no bucket. Then boto3 is not imported.

    Raises:
        StartError: boto3 is not installed.
    """
    if not settings.s3_buckets:
        return None
    executor, client = ThreadPoolExecutor(settings.s3_threads, "s3"), open_client(settings.s3_threads)
    return Store(settings.s3_buckets, settings.max_body, executor, client, settings.s3_timeout)


def open_client(threads: int, variable: str = "TRIREME_S3_BUCKETS") -> Any:
    """Return boto3's client for S3. Raises :class:`StartError` if boto3 is not installed."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise StartError(
            f"{variable} is set, but boto3 is not installed: pip install 'trireme-serving[s3]'."
        ) from None
    # They log keys and signatures at lower levels.
    for name in ("boto3", "botocore", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": MAX_ATTEMPTS},
        max_pool_connections=threads,
    )
    return boto3.client("s3", config=config)


S3_OFF = "this box reads and writes no S3: TRIREME_S3_BUCKETS names no bucket"


def inline_objects(kind: type[Payload], record: Any, path: str, store: Store | None) -> Any:
    """Replace an address in ``record``'s main field by the object's data; other records are unchanged.

    The record may also be ``{"s3_uri": …}`` alone, as it may be a string of base64 alone.

    Args:
        kind: The client's payload.
        record: From the caller.
        path: The record's place in the request, for errors.
        store: Reads objects; None if S3 is off.

    Raises:
        Forbidden: S3 is off, or the address is not allowed.
        WrongPayload: The address is invalid.
    """
    field = kind.main_field
    if field is None or not isinstance(record, dict):
        return record
    if record.keys() == {URI} and URI not in kind.model_fields:
        record = {field: record}
    name = next((name for name in kind.names_of(field) if _is_address(record.get(name))), None)
    if name is None:
        return record
    if store is None:
        raise Forbidden(f"{path}.{name}: {S3_OFF}")
    address = store.parse_address(record[name][URI], f"{path}.{name}.{URI}")
    fields = kind.fields_of_raw(store.read(address))
    # Keep the caller's key, so that a caller who sent the field under two names gets the error.
    return {**record, **{name if key == field else key: value for key, value in fields.items()}}


def _is_address(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {URI}
