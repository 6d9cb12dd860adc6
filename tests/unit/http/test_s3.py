"""Addresses in S3."""

from __future__ import annotations

import pytest

from sm.http.s3 import S3Uri


@pytest.mark.parametrize(
    "text", ["", "pets/cats", "s3://", "s3:///key", "https://pets/cats", "S3://pets/cats"]
)
def test_text_that_is_no_s3_uri_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="s3://BUCKET/KEY"):
        S3Uri.parse(text)
