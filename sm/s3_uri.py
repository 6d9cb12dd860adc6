"""``s3://bucket/key``: an object on S3, or all objects below a prefix."""

from __future__ import annotations

from dataclasses import dataclass

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
            raise ValueError(f"{text!r} is no place on S3: s3://BUCKET/KEY")
        return cls(bucket, key)

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"
