"""``s3://bucket/key``, and whether it is in one of the places that are allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sm.errors import Forbidden, WrongPayload

SCHEME = "s3://"


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


def address(value: object, allowed: Sequence[str], path: str) -> Address:
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
