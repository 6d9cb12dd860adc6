"""Payloads: which images, texts and tensors a caller may send."""

from __future__ import annotations

import base64
import io
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import Field, ValidationError

from sm.client.payloads import ImagePayload, Parameters, Payload, TensorPayload, TextPayload
from sm.errors import BadInput


class Options(Parameters):
    limit: float = Field(default=0.5, ge=0, le=1)


class TextWithOptions(TextPayload):
    parameters: Options = Field(default_factory=Options)


def png_bytes() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (3, 2), (10, 20, 30)).save(stream, "PNG")
    return stream.getvalue()


def npy_bytes(array: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


@pytest.mark.parametrize(
    "sent",
    [
        base64.b64encode(png_bytes()).decode(),
        "data:image/png;base64," + base64.b64encode(png_bytes()).decode(),
        png_bytes(),
    ],
    ids=["base64", "data-url", "raw"],
)
def test_an_image_may_be_base64_a_data_url_or_raw_bytes(sent: object) -> None:
    pixels = ImagePayload.model_validate({"image": sent}).pixels
    assert pixels.shape == (2, 3, 3)
    assert (pixels == (10, 20, 30)).all()


@pytest.mark.parametrize("sent", ["%%%", "aGVsbG8", "aGVs bG8=", "aGVsbG8=\n", "aGVsbG8=aGVsbG8=", "ü"])
def test_base64_is_read_strictly(sent: str) -> None:
    with pytest.raises(BadInput, match="not valid base64"):
        ImagePayload.model_validate({"image": sent})


@pytest.mark.parametrize(
    ("sent", "advice"),
    [
        (base64.encodebytes(bytes(100)).decode(), "in one line"),
        (base64.urlsafe_b64encode(b"\xff\xef\xfe").decode(), "URL-safe"),
        (str(base64.b64encode(png_bytes())), "decode()"),
        ("https://example.org/cat.jpg", "an address"),
        ("aGVsbG8", "padding"),
        ("cat.jpg", "other characters"),
    ],
    ids=["line breaks", "URL-safe alphabet", "Python bytes literal", "URL", "no padding", "file name"],
)
def test_the_error_for_invalid_base64_names_the_field_and_what_to_send(sent: str, advice: str) -> None:
    with pytest.raises(BadInput) as caught:
        ImagePayload.model_validate({"img": sent})
    assert caught.value.details["field"] == "payload.image"
    assert caught.value.sentence.startswith("payload.image: is not valid base64: ")
    assert advice in caught.value.sentence


def test_base64_that_is_no_picture_is_refused_when_its_pixels_are_read() -> None:
    payload = ImagePayload.model_validate({"image": base64.b64encode(b"hello").decode()})
    with pytest.raises(BadInput, match="not a JPEG, PNG or WebP"):
        _ = payload.pixels


def test_a_picture_is_decoded_once() -> None:
    payload = ImagePayload.model_validate({"image": png_bytes()})
    assert payload.pixels is payload.pixels


@pytest.mark.parametrize("sent", [None, 3, [], {}, "", True])
def test_an_image_field_that_is_not_text_is_refused(sent: object) -> None:
    with pytest.raises(ValidationError) as caught:
        ImagePayload.model_validate({"image": sent})
    assert caught.value.errors()[0]["loc"] == ("image",)


@pytest.mark.parametrize(
    ("sent", "location"),
    [
        ({}, ("text",)),
        ({"text": 1}, ("text",)),
        ({"text": "a", "other": 1}, ("other",)),
        ({"text": "a", "parameters": {"limit": float("nan")}}, ("parameters", "limit")),
        ({"text": "a", "parameters": {"limit": float("inf")}}, ("parameters", "limit")),
        ({"text": "a", "parameters": {"limit": 2}}, ("parameters", "limit")),
        ({"text": "a", "parameters": {"limits": 0}}, ("parameters", "limits")),
    ],
)
def test_the_error_for_a_wrong_field_names_it(sent: dict[str, Any], location: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        TextWithOptions.model_validate(sent)
    assert caught.value.errors()[0]["loc"] == location


def test_a_raw_text_body_must_be_utf_8() -> None:
    assert TextPayload.fields_of_raw("Grüße 👋".encode()) == {"text": "Grüße 👋"}
    assert TextPayload.fields_of_raw(b"\xef\xbb\xbfa") == {"text": "a"}
    with pytest.raises(BadInput, match="not UTF-8"):
        TextPayload.fields_of_raw(b"\xff\xfe")


def test_a_payload_without_a_main_field_takes_no_raw_body() -> None:
    with pytest.raises(BadInput, match="takes no raw body"):
        Payload.fields_of_raw(b"x")


def test_a_tensor_may_be_nested_lists_or_npy() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    from_body = TensorPayload.model_validate(TensorPayload.fields_of_raw(npy_bytes(array))).array
    assert from_body.dtype == np.float32
    assert np.array_equal(from_body, array)
    assert np.array_equal(TensorPayload(tensor=array.tolist()).array, array)


@pytest.mark.parametrize("tensor", [[[1], [2, 3]], "abc", ["a"], {"a": 1}, None, [None]])
def test_a_tensor_must_be_a_regular_array_of_numbers(tensor: object) -> None:
    with pytest.raises(BadInput, match="not a regular array of numbers"):
        _ = TensorPayload(tensor=tensor).array


def test_a_tensor_leaves_room_for_a_batch_dimension() -> None:
    assert TensorPayload(tensor=np.zeros((1,) * 31)).array[None].ndim == 32
    with pytest.raises(BadInput, match="32 dimensions; at most 31"):
        _ = TensorPayload(tensor=np.zeros((1,) * 32)).array


@pytest.mark.parametrize(
    "tensor",
    [["a" * 10**6, *[1] * 10**6], [[1.5, "x"] * 10**5, [1.5, "y" * 10**6] * 10**5]],
    ids=["one long text", "many long texts"],
)
def test_a_text_among_numbers_is_refused_without_using_much_memory(tensor: object) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match="not a regular array of numbers"):
            _ = TensorPayload(tensor=tensor).array
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        npy_bytes(np.arange(100))[:-10],
        npy_bytes(np.array([{"a": 1}], object)),
        b"\x93NUMPY\x01\x00\xff\xff{",
    ],
    ids=["empty", "garbage", "truncated", "pickle", "header"],
)
def test_a_body_that_is_not_npy_is_refused_and_never_unpickled(body: bytes) -> None:
    with pytest.raises(BadInput, match=r"not a \.npy array"):
        TensorPayload.fields_of_raw(body)


def test_the_schema_says_that_an_image_is_base64() -> None:
    schema = ImagePayload.model_json_schema()
    assert schema["properties"]["image"]["contentEncoding"] == "base64"
    assert schema["additionalProperties"] is False
    assert json.dumps(schema)
