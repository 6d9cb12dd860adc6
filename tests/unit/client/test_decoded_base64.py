"""A long base64 string in a payload is decoded in place; everything else is parsed as usual."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from sm.client.base import Payload
from sm.client.payloads import MIN_BASE64_BYTES, Base64Bytes, DecodedBase64, parse_body
from sm.router.answers import dumps
from sm.router.classify import DispatchRequest
from sm.router.dispatch import validate_payload

LONG_BASE64 = "ACGT" * MIN_BASE64_BYTES
OTHER_BASE64 = "Zm9v" * MIN_BASE64_BYTES
NON_CANONICAL_BASE64 = "A" * 2 * MIN_BASE64_BYTES + "QR=="


def json_value(value: Any) -> Any:
    return json.loads(dumps(value))


@pytest.mark.parametrize(
    ("body", "decoded_count"),
    [
        (dumps({"payload": LONG_BASE64}), 1),
        (
            dumps(
                {"modelname": "a", "payload": {"image": LONG_BASE64, "more": [1, "b"], "mask": OTHER_BASE64}}
            ),
            2,
        ),
        (dumps({"payload": [{"image": LONG_BASE64}, OTHER_BASE64, 3]}), 2),
        # Not canonical; not base64; after an escaped quote; not a string.
        (dumps({"payload": NON_CANONICAL_BASE64}), 0),
        (dumps({"payload": LONG_BASE64 + "é"}), 0),
        (b'{"payload": "\\"' + LONG_BASE64.encode() + b'"}', 0),
        (dumps({"payload": [1] * MIN_BASE64_BYTES}), 0),
        # Outside of a payload's fields.
        (dumps({"payload": {"deep": {"er": LONG_BASE64}}}), 0),
        (dumps({"payload": {"image": LONG_BASE64}, "parameters": {"other": OTHER_BASE64}}), 0),
        (dumps({"payload": {LONG_BASE64: 1}}), 0),
        (dumps([LONG_BASE64]), 0),
        (b'{"payload": "' + LONG_BASE64.encode() + b'", "payload": 1}', 0),
    ],
    ids=[
        "bare payload",
        "two fields",
        "list",
        "not canonical",
        "not base64",
        "after a quote",
        "numbers",
        "nested",
        "parameters",
        "as key",
        "no object",
        "payload twice",
    ],
)
def test_the_parsed_document_is_the_same_as_with_orjson(body: bytes, decoded_count: int) -> None:
    parsed = parse_body(body)
    assert json_value(parsed) == orjson.loads(body)
    assert str(parsed).count("DecodedBase64 object") == decoded_count


@pytest.mark.parametrize(
    "end", [b"", b'"', b'"}}', b'" 1}'], ids=["open string", "open object", "extra brace", "no comma"]
)
def test_invalid_json_has_the_same_error_as_with_orjson(end: bytes) -> None:
    body = b'{"payload": "' + LONG_BASE64.encode() + end
    with pytest.raises(orjson.JSONDecodeError) as expected:
        orjson.loads(body)
    with pytest.raises(orjson.JSONDecodeError) as caught:
        parse_body(body)
    assert str(caught.value) == str(expected.value)


class BytesAndTextPayload(Payload):
    main_field = "image"

    image: Base64Bytes
    letters: str = ""
    anything: Any = None


class FakeClient:
    name, payload = "both", BytesAndTextPayload


def test_each_field_gets_bytes_or_text_as_declared() -> None:
    decoded = DecodedBase64(b"\x00\x10\x83" * 10)
    record: dict[str, Any] = {"image": decoded, "letters": decoded, "anything": decoded}
    payload = validate_payload(FakeClient(), DispatchRequest("both", [record]), record)  # type: ignore[arg-type]
    assert isinstance(payload, BytesAndTextPayload)
    assert payload.image is decoded.content
    assert payload.letters == payload.anything == "ABCD" * 10
    bare_payload = validate_payload(FakeClient(), DispatchRequest("both", [decoded]), decoded)  # type: ignore[arg-type]
    assert isinstance(bare_payload, BytesAndTextPayload)
    assert bare_payload.image is decoded.content
