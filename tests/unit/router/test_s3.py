"""Which S3 objects a request may name."""

from __future__ import annotations

import pytest

from sm.errors import Forbidden, WrongPayload
from sm.http.s3 import S3Uri
from sm.router.s3 import may_have_member, parse_uri

ALLOWED_PREFIXES = ("inputs", "results/answers")


@pytest.mark.parametrize("uri", ["s3://inputs/a", "s3://inputs/a b/ü.png", "s3://results/answers/x.json"])
def test_an_object_under_an_allowed_prefix_is_accepted(uri: str) -> None:
    assert str(parse_uri(uri, ALLOWED_PREFIXES, "payload")) == uri


@pytest.mark.parametrize(
    "uri",
    [
        "s3://other/a",
        "s3://inputs2/a",
        "s3://results/a",
        "s3://results/answers",
        "s3://results/answers2/x",
        "s3://results/answers/../a",
        "s3://inputs/./a",
    ],
)
def test_any_other_object_is_forbidden(uri: str) -> None:
    with pytest.raises(Forbidden, match="TRIREME_S3_BUCKETS"):
        parse_uri(uri, ALLOWED_PREFIXES, "payload")


@pytest.mark.parametrize(
    "uri", ["", "inputs/a", "s3://", "s3://inputs", "s3://inputs/", "https://a/b", 7, None]
)
def test_the_error_for_an_invalid_uri_names_the_field(uri: object) -> None:
    with pytest.raises(WrongPayload, match=r"payload\[1\]\.image"):
        parse_uri(uri, ALLOWED_PREFIXES, "payload[1].image")


def test_a_key_may_have_at_most_1024_bytes() -> None:
    assert parse_uri("s3://inputs/" + "k" * 1024, ALLOWED_PREFIXES, "payload")
    with pytest.raises(WrongPayload):
        parse_uri("s3://inputs/" + "ü" * 513, ALLOWED_PREFIXES, "payload")


@pytest.mark.parametrize(
    "body",
    [
        b'{"s3_uri": 1}',
        b'{"result_s3_uri":""}',
        rb'{"s\u0033_uri": 1}',
        rb'{"s3_\u0075r\u0069": 1}',
        rb'"s3\u005Furi"',
    ],
)
def test_a_body_that_may_name_an_object_is_recognised_with_any_escapes(body: bytes) -> None:
    assert may_have_member(body, "s3_uri")


@pytest.mark.parametrize(
    "body", [b"", b'{"text": "s3 uri"}', rb'{"text": "gr\u00fcn \u003c \u0026"}', rb'"\u0173"']
)
def test_other_bodies_do_not_look_as_if_they_named_an_object(body: bytes) -> None:
    assert not may_have_member(body, "s3_uri")


@pytest.mark.parametrize(
    "text", ["", "pets/cats", "s3://", "s3:///key", "https://pets/cats", "S3://pets/cats"]
)
def test_text_that_is_no_s3_uri_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an S3 address: s3://BUCKET/KEY"):
        S3Uri.parse(text)
