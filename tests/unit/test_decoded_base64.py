"""A long string of base64 is decoded where it lies; whatever else is long is parsed as ever."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from sm.client.base import Payload
from sm.client.payloads import Base64Bytes
from sm.decoded_base64 import MIN_BYTES, DecodedBase64, parse
from sm.router.answer import dumps
from sm.router.dispatch import validate_payload
from sm.router.invocation import DispatchRequest

LETTERS = "ACGT" * MIN_BYTES
OTHER = "Zm9v" * MIN_BYTES
ODD = "A" * 2 * MIN_BYTES + "QR=="


def texts(value: Any) -> Any:
    return json.loads(dumps(value))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (dumps({"payload": LETTERS}), 1),
        (dumps({"modelname": "a", "payload": {"image": LETTERS, "more": [1, "b"], "mask": OTHER}}), 2),
        (dumps({"payload": [{"image": LETTERS}, OTHER, 3]}), 2),
        # Another text stands for the same bytes; no base64; an escaped quote before it; no string at all.
        (dumps({"payload": ODD}), 0),
        (dumps({"payload": LETTERS + "é"}), 0),
        (b'{"payload": "\\"' + LETTERS.encode() + b'"}', 0),
        (dumps({"payload": [1] * MIN_BYTES}), 0),
        # Where no payload has its fields.
        (dumps({"payload": {"deep": {"er": LETTERS}}}), 0),
        (dumps({"payload": {"image": LETTERS}, "parameters": {"other": OTHER}}), 0),
        (dumps({"payload": {LETTERS: 1}}), 0),
        (dumps([LETTERS]), 0),
        (b'{"payload": "' + LETTERS.encode() + b'", "payload": 1}', 0),
    ],
)
def test_it_is_the_same_document(body: bytes, found: int) -> None:
    parsed = parse(body)
    assert texts(parsed) == orjson.loads(body)
    assert str(parsed).count("DecodedBase64 object") == found


@pytest.mark.parametrize("end", [b"", b'"', b'"}}', b'" 1}'])
def test_it_is_refused_in_the_same_words(end: bytes) -> None:
    body = b'{"payload": "' + LETTERS.encode() + end
    with pytest.raises(orjson.JSONDecodeError) as whole:
        orjson.loads(body)
    with pytest.raises(orjson.JSONDecodeError) as cut:
        parse(body)
    assert str(cut.value) == str(whole.value)


class Both(Payload):
    main_field = "image"

    image: Base64Bytes
    letters: str = ""
    anything: Any = None


class Client:
    name, payload = "both", Both


def test_each_field_gets_what_it_is_declared_to_be() -> None:
    held = DecodedBase64(b"\x00\x10\x83" * 10)
    sent: dict[str, Any] = {"image": held, "letters": held, "anything": held}
    payload = validate_payload(Client(), DispatchRequest("both", [sent]), sent)  # type: ignore[arg-type]
    assert isinstance(payload, Both)
    assert payload.image is held.content
    assert payload.letters == payload.anything == "ABCD" * 10
    alone = validate_payload(Client(), DispatchRequest("both", [held]), held)  # type: ignore[arg-type]
    assert isinstance(alone, Both)
    assert alone.image is held.content
