"""A record that names an S3 object gets the object's content in its place."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sm.client.payloads import BodyPayload, ImagePayload, Payload, TextPayload
from sm.errors import BadInput, Forbidden, WrongPayload
from sm.router.s3 import Store, inline_objects
from tests.support.s3 import client

URI = {"s3_uri": "s3://inputs/word.txt"}


class TitledText(TextPayload):
    title: str = ""


class TextWithS3Field(TextPayload):
    s3_uri: str = ""


@pytest.fixture(scope="module")
def store(aws: str) -> Iterator[Store]:
    client(aws).put_object(Bucket="inputs", Key="word.txt", Body="Wörter".encode())
    client(aws).put_object(Bucket="inputs", Key="bytes", Body=b"\xff\xfe")
    with ThreadPoolExecutor(1) as pool:
        yield Store(("inputs",), 1000, pool, client(aws))


@pytest.mark.parametrize("record", [{"text": URI}, URI])
def test_an_address_alone_or_in_the_main_field_is_replaced_by_the_object(store: Store, record: Any) -> None:
    assert inline_objects(TextPayload, record, "payload", store.read_object) == {"text": "Wörter"}


def test_other_fields_are_kept_and_a_picture_is_bytes(store: Store) -> None:
    assert inline_objects(TitledText, {"title": "t", "text": URI}, "payload", store.read_object) == {
        "title": "t",
        "text": "Wörter",
    }
    assert inline_objects(ImagePayload, {"image": URI}, "payload", store.read_object) == {
        "image": "Wörter".encode()
    }
    assert inline_objects(ImagePayload, {"img": URI}, "payload", store.read_object) == {
        "img": "Wörter".encode()
    }
    both_fields = {"img": URI, "image": "QQ=="}
    assert inline_objects(ImagePayload, both_fields, "payload", store.read_object) == {
        "img": "Wörter".encode(),
        "image": "QQ==",
    }


@pytest.mark.parametrize(
    ("payload_type", "record"),
    [
        (TextPayload, {"text": "a"}),
        (TextPayload, "a"),
        (TitledText, {"text": "a", "title": URI}),
        (TextWithS3Field, URI),
        (Payload, URI),
        (BodyPayload, URI),
        (TextPayload, {"text": {**URI, "more": 1}}),
    ],
)
def test_a_record_without_an_address_is_unchanged(payload_type: type[Payload], record: Any) -> None:
    assert inline_objects(payload_type, record, "payload", None) is record


def test_an_error_names_the_path_of_the_record(store: Store) -> None:
    with pytest.raises(Forbidden, match=r"payload\[1\]\.text: .*TRIREME_S3_BUCKETS"):
        inline_objects(TextPayload, {"text": URI}, "payload[1]", None)
    with pytest.raises(WrongPayload, match=r"payload\[1\]\.text\.s3_uri: is not an address"):
        inline_objects(TextPayload, {"text": {"s3_uri": 7}}, "payload[1]", store.read_object)
    with pytest.raises(BadInput, match="UTF-8"):
        inline_objects(TextPayload, {"text": {"s3_uri": "s3://inputs/bytes"}}, "payload", store.read_object)
