"""Parse ``s3://bucket/key``, and check that it is in an allowed place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from sm.errors import Forbidden, WrongPayload
from sm.s3_uri import S3Uri

#: The name of members that hold an address, or the end of their name.
URI = "s3_uri"
MAX_KEY_BYTES = 1024  # S3 has no longer keys


def is_within(uri: S3Uri, place: str) -> bool:
    """True if it is in ``bucket``, or below ``bucket/prefix`` as if that were a folder."""
    bucket, _, prefix = place.partition("/")
    below = f"{prefix.rstrip('/')}/" if prefix else ""
    return uri.bucket == bucket and uri.key.startswith(below)


def may_have_member(body: bytes, name: str) -> bool:
    """True if a JSON body may have a member whose name contains ``name``, without parsing the body."""
    return name.encode() in body or (b"\\u00" in body and _escape_pattern(name).search(body) is not None)


@cache
def _escape_pattern(name: str) -> re.Pattern[bytes]:
    """Any character of ``name`` as an escape: ASCII letters are escaped only to hide them."""
    codes = "|".join(f"{ord(character):02x}" for character in name)
    return re.compile(rf"(?i)\\u00(?:{codes})".encode())


def parse_uri(value: object, allowed: Sequence[str], path: str) -> S3Uri:
    """Parse an address; ``path`` is its place in the request.

    Raises :class:`WrongPayload` for an invalid one, and :class:`Forbidden` for one outside of ``allowed``.
    """
    try:
        uri = S3Uri.parse(value if isinstance(value, str) else "")
    except ValueError:
        uri = S3Uri("", "")
    if not uri.key or len(uri.key.encode()) > MAX_KEY_BYTES:
        raise WrongPayload(f"{path}: is no address such as s3://bucket/key", field=path)
    # For S3 these are ordinary names, but software in between may take them for folders.
    climbs = any(part in (".", "..") for part in uri.key.split("/"))
    if climbs or not any(is_within(uri, place) for place in allowed):
        raise Forbidden(f"{path}: {uri} is in none of the places that TRIREME_S3_BUCKETS names")
    return uri
