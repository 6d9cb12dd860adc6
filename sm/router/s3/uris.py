"""Parse ``s3://bucket/key``, and check that it is in an allowed place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from sm.errors import Forbidden, WrongPayload

#: The name of members that hold an address, or the end of their name.
URI = "s3_uri"
MAX_KEY_BYTES = 1024  # S3 has no longer keys


def is_within(uri: S3Uri, location: str) -> bool:
    """True if an address is in the location: ``bucket``, or ``bucket/prefix``, which is taken as a folder."""
    bucket, _, prefix = location.partition("/")
    folder = f"{prefix.rstrip('/')}/" if prefix else ""
    return uri.bucket == bucket and uri.key.startswith(folder)


def may_have_member(body: bytes, name: str) -> bool:
    """True if a JSON body may have a member whose name contains ``name``, without parsing the body.

    It is not part of the classification, because it decides whose threads the request uses before its body is
    parsed.
    """
    return name.encode() in body or (b"\\u00" in body and _escape_pattern(name).search(body) is not None)


@cache
def _escape_pattern(name: str) -> re.Pattern[bytes]:
    """Match a character of ``name`` as a JSON escape. Nobody escapes ASCII letters but to hide a name."""
    codes = "|".join(f"{ord(character):02x}" for character in name)
    return re.compile(rf"(?i)\\u00(?:{codes})".encode())


def parse_uri(value: object, allowed: Sequence[str], path: str) -> S3Uri:
    """Parse an address.

    Args:
        value: From the caller.
        allowed: Buckets, or ``bucket/prefix``.
        path: The address's place in the request, for errors.

    Raises:
        WrongPayload: It is not an address.
        Forbidden: It is in none of the allowed locations.
    """
    try:
        uri = S3Uri.parse(value if isinstance(value, str) else "")
    except ValueError:
        uri = S3Uri("", "")
    if not uri.key or len(uri.key.encode()) > MAX_KEY_BYTES:
        raise WrongPayload(f"{path}: is not an address such as s3://bucket/key", field=path)
    # S3 takes ".." as an ordinary name, but software on the way may resolve it as a folder.
    has_dots = any(part in (".", "..") for part in uri.key.split("/"))
    if has_dots or not any(is_within(uri, location) for location in allowed):
        raise Forbidden(f"{path}: {uri} is in none of the places that TRIREME_S3_BUCKETS names")
    return uri


SCHEME = "s3://"


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

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"
