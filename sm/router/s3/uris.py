"""Parse ``s3://bucket/key``, and check that it is in an allowed place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from sm.errors import Forbidden, WrongPayload

SCHEME = "s3://"
#: The name of each member of a request that holds an address, or the end of it.
URI = "s3_uri"


@dataclass(frozen=True)
class Address:
    """An object's place."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"

    def within(self, place: str) -> bool:
        """Whether it is in ``bucket``, or below ``bucket/prefix`` as if that were a folder."""
        bucket, _, prefix = place.partition("/")
        below = f"{prefix.rstrip('/')}/" if prefix else ""
        return self.bucket == bucket and self.key.startswith(below)


def may_have_member(body: bytes, name: str) -> bool:
    """Whether a JSON body may have a member with ``name`` in its name, told without parsing the body."""
    return name.encode() in body or (b"\\u00" in body and _escaped(name).search(body) is not None)


@cache
def _escaped(name: str) -> re.Pattern[bytes]:
    """Any character of ``name`` as an escape: nobody writes an ASCII letter so, but to hide it."""
    codes = "|".join(f"{ord(character):02x}" for character in name)
    return re.compile(rf"(?i)\\u00(?:{codes})".encode())


def parse_uri(value: object, allowed: Sequence[str], path: str) -> Address:
    """Read an address; ``path`` is where it stands in the request.

    :class:`WrongPayload` for what is none, :class:`Forbidden` for one in none of the ``allowed`` places.
    """
    if not isinstance(value, str) or not value.startswith(SCHEME):
        raise WrongPayload(f"{path}: is no address such as s3://bucket/key", field=path)
    bucket, _, key = value.removeprefix(SCHEME).partition("/")
    if not bucket or not key or len(key.encode()) > 1024:
        raise WrongPayload(f"{path}: is no address such as s3://bucket/key", field=path)
    found = Address(bucket, key)
    # To S3 these are names like any other; something on the way might take them for folders.
    climbs = any(part in (".", "..") for part in key.split("/"))
    if climbs or not any(found.within(place) for place in allowed):
        raise Forbidden(f"{path}: {found} is in none of the places that TRIREME_S3_BUCKETS names")
    return found
