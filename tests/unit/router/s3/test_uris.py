"""Parsing ``s3://bucket/key``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm.router.s3.uris import S3Uri


@pytest.mark.parametrize(
    ("text", "bucket", "key"),
    [
        ("s3://pets/cats/tom.png", "pets", "cats/tom.png"),
        ("s3://pets/", "pets", ""),
        ("s3://pets", "pets", ""),
        ("s3://pets//a", "pets", "/a"),
    ],
)
def test_the_bucket_ends_at_the_first_slash(text: str, bucket: str, key: str) -> None:
    assert S3Uri.parse(text) == S3Uri(bucket, key)


@pytest.mark.parametrize(
    "text", ["", "pets/cats", "s3://", "s3:///key", "https://pets/cats", "S3://pets/cats"]
)
def test_text_that_is_no_s3_uri_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an S3 address: s3://BUCKET/KEY"):
        S3Uri.parse(text)


@given(bucket=st.text(st.characters(exclude_characters="/"), min_size=1), key=st.text())
def test_a_written_uri_is_parsed_back(bucket: str, key: str) -> None:
    assert S3Uri.parse(str(S3Uri(bucket, key))) == S3Uri(bucket, key)
