"""Read and write the bucket: callers' inputs, results, and models."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    NoCredentialsError,
    ReadTimeoutError,
)

from sm.errors import BadInput, DeadlinePassed, Forbidden, NotReady, StorageFailed, TooLarge, TriremeError
from sm.invocation import current

from .failures import NoSuchObject
from .transfers import Transfers, watch_connections

#: Characters that S3 itself calls safe, and a space.
KEY = re.compile(r"[\w!.*'()\- /]{1,900}")
#: The member of a request that names an object, plain or with one of its characters as a JSON escape. Nobody
#: escapes ASCII letters but to hide a name.
KEY_MEMBER = "s3_key"
ESCAPED_MEMBER = re.compile(rb"(?i)\\u00(?:" + "|".join(f"{ord(c):02x}" for c in KEY_MEMBER).encode() + b")")
MISSING_CODES = ("404", "NoSuchKey", "NotFound")
BUSY_CODES = (
    "SlowDown",
    "503",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "ServiceUnavailable",
)
#: Only whole reads and writes of one object: sending one again does no harm.
CONFIG = Config(connect_timeout=2, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 3})
#: Calls of S3 at once: as many connections as boto3 keeps.
MAX_CALLS = 10
#: Seconds of one call, where no request limits it. Lambda ends after as many.
CALL_TIMEOUT_S = 900.0
T = TypeVar("T")


@dataclass(frozen=True)
class Stored:
    """The content of an object."""

    body: bytes
    content_type: str


class Storage:
    """One bucket. ``s3`` is a boto3 client for all threads; ``largest`` limits an object's bytes."""

    def __init__(self, bucket: str, largest: int, s3: Any = None) -> None:
        self.bucket, self._largest = bucket, largest
        self._s3 = s3 or boto3.client("s3", config=CONFIG)
        watch_connections(self._s3)
        self._transfers = Transfers(ThreadPoolExecutor(MAX_CALLS, "s3"), CALL_TIMEOUT_S)

    def get(self, key: str) -> Stored:
        """Read an object. Raises :class:`NoSuchObject`, :class:`TooLarge`, or another error of S3."""

        def read() -> Stored:
            answer = self._s3.get_object(Bucket=self.bucket, Key=key)
            with closing(answer["Body"]) as body:
                size = answer.get("ContentLength")
                if size is None:
                    raise StorageFailed(f"S3 does not say how long {key!r} is")
                if size > self._largest:
                    raise TooLarge(f"{key!r} is larger than {self._largest:,} bytes")
                return Stored(body.read(), answer.get("ContentType", ""))

        return self._call("read", key, read)

    def put(self, key: str, body: bytes) -> None:
        """Write an object; S3 stores all of it or nothing."""
        put = {"Bucket": self.bucket, "Key": key, "Body": body, "ContentType": "application/json"}
        self._call("write", key, lambda: self._s3.put_object(**put))

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly below ``prefix``."""
        rows = self._list("CommonPrefixes", prefix, Delimiter="/")
        return [row["Prefix"][len(prefix) : -1] for row in rows]

    def list_below(self, prefix: str) -> dict[str, int]:
        """Return the bytes of every object below ``prefix``, by the rest of its key."""
        rows = self._list("Contents", prefix)
        return {row["Key"][len(prefix) :]: row["Size"] for row in rows if not row["Key"].endswith("/")}

    def download(self, key: str, path: Path) -> None:
        """Write an object to a file, in parts. An :class:`OSError` comes from the file."""

        def copy() -> None:
            answer = self._s3.get_object(Bucket=self.bucket, Key=key)
            with closing(answer["Body"]) as body, path.open("wb") as file:
                for part in body.iter_chunks(2**20):
                    file.write(part)

        self._call("read", key, copy)

    def _list(self, member: str, prefix: str, **options: str) -> list[dict[str, Any]]:
        def list_all() -> list[dict[str, Any]]:
            pages = self._s3.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=prefix, **options
            )
            return [row for page in pages for row in page.get(member, [])]

        return self._call("list", prefix, list_all)

    def _has(self, key: str) -> bool:
        """True if the object exists. S3 answers AccessDenied for a missing one if listing is restricted."""
        try:
            listing = self._transfers.run(lambda: self._s3.list_objects_v2(Bucket=self.bucket, Prefix=key))
        except (ClientError, BotoCoreError):
            return True
        return any(row["Key"] == key for row in listing.get("Contents", []))

    def _call(self, doing: str, key: str, call: Callable[[], T]) -> T:
        """Run ``call`` within the request's deadline, and explain errors of S3 and boto3 to the caller."""
        if (invocation := current()) is not None:
            invocation.check()
        try:
            return self._transfers.run(call)
        except ClientError as error:
            if doing == "read" and _code(error) == "AccessDenied" and not self._has(key):
                raise NoSuchObject(f"there is no object {key!r}") from None
            raise _to_trireme_error(error, doing, self.bucket, key) from None
        except ReadTimeoutError:
            raise DeadlinePassed(f"S3 has not answered in time, to {doing} {key!r}") from None
        except (ConnectionError, HTTPClientError):
            raise NotReady("S3 cannot be reached") from None
        except NoCredentialsError:
            raise StorageFailed("the gateway has no AWS credentials") from None
        except BotoCoreError as error:
            raise StorageFailed(f"the gateway cannot {doing} {key!r}: {type(error).__name__}") from None


class NoStorage(Storage):
    """Stands for the bucket of a gateway without one: it has no models, and no objects."""

    def __init__(self) -> None:
        self.bucket = ""

    def get(self, key: str) -> Stored:  # noqa: ARG002
        raise BadInput("s3_key: this gateway has no bucket; send the payload itself", field="s3_key")

    def folders(self, prefix: str) -> list[str]:  # noqa: ARG002
        return []

    def list_below(self, prefix: str) -> dict[str, int]:  # noqa: ARG002
        return {}


def may_name_object(body: bytes) -> bool:
    """True if a JSON body may name an object, without parsing it: this decides whose threads parse it."""
    return KEY_MEMBER.encode() in body or (b"\\u00" in body and ESCAPED_MEMBER.search(body) is not None)


def check_key(key: object, prefixes: tuple[str, ...]) -> str:
    """Return a key that a caller may name: below one of ``prefixes``, also if it is read as a path."""
    if not isinstance(key, str) or not key:
        raise BadInput("s3_key: must be the key of an object, a string that is not empty", field="s3_key")
    if not KEY.fullmatch(key) or any(part in ("", ".", "..") for part in key.split("/")):
        raise BadInput("s3_key: has a character or a part that keys may not have here", field="s3_key")
    if not key.startswith(prefixes):
        raise Forbidden(f"s3_key: must begin with {' or '.join(prefixes)}", field="s3_key")
    return key


def _to_trireme_error(error: ClientError, doing: str, bucket: str, key: str) -> TriremeError:
    code = _code(error)
    if code in MISSING_CODES:
        return NoSuchObject(f"there is no object {key!r}")
    if code == "NoSuchBucket":
        return StorageFailed(f"there is no bucket {bucket!r}")
    if code in BUSY_CODES:
        return NotReady("S3 throttles the request; retry later")
    return StorageFailed(
        f"the gateway may not {doing} {key!r} ({code}); its role needs s3 permissions for it"
    )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
