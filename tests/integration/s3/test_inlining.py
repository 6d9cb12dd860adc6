"""A record that names an object, as the dispatcher sees it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sm.client.payloads import BodyPayload, ImagePayload, Payload, TextPayload
from sm.errors import BadInput, Forbidden, WrongPayload
from sm.router.s3.inlining import inline_objects
from sm.router.s3.store import Store
from tests.support.s3 import client

URI = {"s3_uri": "s3://inputs/word.txt"}


class Titled(TextPayload):
    title: str = ""


class Linked(TextPayload):
    s3_uri: str = ""


@pytest.fixture(scope="module")
def store(aws: str) -> Iterator[Store]:
    client(aws).put_object(Bucket="inputs", Key="word.txt", Body="Wörter".encode())
    client(aws).put_object(Bucket="inputs", Key="bytes", Body=b"\xff\xfe")
    with ThreadPoolExecutor(1) as pool:
        yield Store(("inputs",), 1000, pool, client(aws))


@pytest.mark.parametrize("record", [{"text": URI}, URI])
def test_an_address_in_the_main_field_or_alone_becomes_the_object(store: Store, record: Any) -> None:
    assert inline_objects(TextPayload, record, "payload", store) == {"text": "Wörter"}


def test_other_fields_stay_and_a_picture_is_bytes(store: Store) -> None:
    assert inline_objects(Titled, {"title": "t", "text": URI}, "payload", store) == {
        "title": "t",
        "text": "Wörter",
    }
    assert inline_objects(ImagePayload, {"image": URI}, "payload", store) == {"image": "Wörter".encode()}
    assert inline_objects(ImagePayload, {"img": URI}, "payload", store) == {"img": "Wörter".encode()}
    both = {"img": URI, "image": "QQ=="}
    assert inline_objects(ImagePayload, both, "payload", store) == {"img": "Wörter".encode(), "image": "QQ=="}


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        (TextPayload, {"text": "a"}),
        (TextPayload, "a"),
        (Titled, {"text": "a", "title": URI}),
        (Linked, URI),
        (Payload, URI),
        (BodyPayload, URI),
        (TextPayload, {"text": {**URI, "more": 1}}),
    ],
)
def test_any_other_record_is_left_alone(kind: type[Payload], record: Any) -> None:
    assert inline_objects(kind, record, "payload", None) is record


def test_what_is_wrong_with_an_object_is_told_with_its_path(store: Store) -> None:
    with pytest.raises(Forbidden, match=r"payload\[1\]\.text: .*TRIREME_S3_BUCKETS"):
        inline_objects(TextPayload, {"text": URI}, "payload[1]", None)
    with pytest.raises(WrongPayload, match=r"payload\[1\]\.text\.s3_uri: is no address"):
        inline_objects(TextPayload, {"text": {"s3_uri": 7}}, "payload[1]", store)
    with pytest.raises(BadInput, match="UTF-8"):
        inline_objects(TextPayload, {"text": {"s3_uri": "s3://inputs/bytes"}}, "payload", store)
