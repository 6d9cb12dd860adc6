"""Payloads: which images, texts and tensors a caller may send, and how base64 and ``.npy`` are read."""

from __future__ import annotations

import base64
import io
import warnings
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from sm.client.payloads import (
    MAX_NPY_HEADER_BYTES,
    Base64Bytes,
    ImagePayload,
    Payload,
    TensorPayload,
    TextPayload,
    read_npy,
)
from sm.errors import BadInput
from tests.support.hostile_pictures import encode
from tests.support.npy_bodies import ARRAYS, damaged_bodies, encode_npy, header, with_header
from tests.unit.client.memory import MIB, measured
from trireme_extensions.toolkit import codecs

PNG = encode(Image.new("RGB", (3, 2), (10, 20, 30)), "PNG")
IN_BASE64 = base64.b64encode(PNG).decode()


@pytest.mark.parametrize(
    "sent", [IN_BASE64, f"data:image/png;base64,{IN_BASE64}", PNG], ids=["base64", "url", "raw"]
)
def test_an_image_may_be_base64_a_data_url_or_raw_bytes(sent: object) -> None:
    pixels = ImagePayload.model_validate({"image": sent}).pixels
    assert (pixels == np.full((2, 3, 3), (10, 20, 30))).all()


def test_img_is_another_key_for_image_and_exactly_one_of_them_is_sent() -> None:
    assert ImagePayload.model_validate({"img": IN_BASE64}).image == PNG
    with pytest.raises(ValidationError):
        ImagePayload.model_validate({"image": IN_BASE64, "img": IN_BASE64})
    schema = ImagePayload.model_json_schema()
    assert list(schema["properties"]) == ["image", "img"]
    assert schema["allOf"] == [{"oneOf": [{"required": ["image"]}, {"required": ["img"]}]}]


class BytesAndTextPayload(Payload):
    main_field = "image"

    image: Base64Bytes
    letters: str = ""
    anything: Any = None


@given(
    st.sampled_from(["", "data:image/png;base64,"]),
    st.binary().map(base64.b64encode).map(bytes.decode) | st.text("QUJD/+=-_ \n%ü", max_size=12),
)
@example("", "aGVsbG8=aGVsbG8=")
@example("", "aGVsbG8=\n")
@example("", "DDDD=")
def test_base64_is_read_as_strictly_as_by_the_standard_library(prefix: str, text: str) -> None:
    expected = None
    with suppress(ValueError):
        expected = base64.b64decode(text, validate=True)
    if expected is None or len(text) % 4:  # the standard library takes one = too many
        with pytest.raises(BadInput) as caught:
            BytesAndTextPayload.model_validate({"image": prefix + text})
        assert caught.value.details["field"] == "payload.image"
    else:
        assert BytesAndTextPayload.model_validate({"image": prefix + text}).image == expected


def test_each_way_of_wrong_base64_has_an_advice_of_its_own() -> None:
    sentences = set()
    for sent in (
        base64.encodebytes(bytes(100)).decode(),  # line breaks
        base64.urlsafe_b64encode(b"\xff\xef\xfe").decode(),
        str(base64.b64encode(PNG)),  # a Python literal
        "https://example.org/cat.jpg",
        "aGVsbG8",  # no padding
        "cat.jpg",
    ):
        with pytest.raises(BadInput) as caught:
            ImagePayload.model_validate({"img": sent})
        assert caught.value.details["field"] == "payload.image"
        sentences.add(caught.value.sentence)
    assert len(sentences) == 6


def test_a_raw_text_body_must_be_utf_8_and_a_payload_without_a_main_field_takes_none() -> None:
    assert TextPayload.fields_of_raw("Grüße 👋".encode()) == {"text": "Grüße 👋"}
    assert TextPayload.fields_of_raw(b"\xef\xbb\xbfa") == {"text": "a"}
    for kind, body in ((TextPayload, b"\xff\xfe"), (Payload, b"x")):
        with pytest.raises(BadInput):
            kind.fields_of_raw(body)


def test_a_tensor_may_be_nested_lists_or_npy() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    from_body = TensorPayload.model_validate(TensorPayload.fields_of_raw(encode_npy(array))).array
    assert from_body.dtype == np.float32
    assert np.array_equal(from_body, array)
    assert np.array_equal(TensorPayload(tensor=array.tolist()).array, array)
    assert TensorPayload(tensor=np.zeros((1,) * 31)).array[None].ndim == 32


@pytest.mark.parametrize(
    "tensor",
    # The last leaves no room for a batch.
    [[[1], [2, 3]], "abc", ["a"], {"a": 1}, None, [None], np.zeros((1,) * 32)],
    ids=range(7),
)
def test_a_tensor_must_be_a_regular_array_of_numbers(tensor: object) -> None:
    with pytest.raises(BadInput):
        _ = TensorPayload(tensor=tensor).array


@pytest.mark.parametrize(
    "tensor",
    [["a" * 10**6, *[1] * 10**5], [[1.5, "x"] * 10**4, [1.5, "y" * 10**6] * 10**4]],
    ids=["one long text", "many long texts"],
)
def test_a_text_among_numbers_is_refused_without_using_much_memory(tensor: object) -> None:
    with measured() as peak, pytest.raises(BadInput):
        _ = TensorPayload(tensor=tensor).array
    assert peak.bytes < 10 * MIB


def assert_same(array: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Also if numbers are not a number."""
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    assert array.tobytes() == expected.tobytes()


@given(ARRAYS, st.sampled_from("CF"), st.sampled_from([None, (2, 0)]), st.binary(max_size=3))
@example(np.zeros((1,) * 32, np.float16), "C", None, b"")
def test_arrays_that_numpy_writes_are_read(
    array: np.ndarray[Any, Any], order: Literal["C", "F"], version: tuple[int, int] | None, after: bytes
) -> None:
    array = array.copy(order)
    read = read_npy(encode_npy(array, version) + after)
    assert_same(read, array)
    assert read.flags.f_contiguous == array.flags.f_contiguous
    assert read.flags.writeable


#: What a damaged body hits rarely, and what NumPy would read, run, or take memory for.
REFUSED = {
    "empty": b"",
    "npz archive": b"PK\x03\x04" + bytes(99),
    "pickle": encode_npy(np.array([{"a": 1}], object)),
    "object field": with_header(header("[('a', 'O')]"), bytes(8)),
    "truncated": encode_npy(np.arange(100))[:-10],
    "header of 4 GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "header of one byte too many": with_header(
        header(shape="(0,)").ljust(MAX_NPY_HEADER_BYTES + 1), version=b"\x02\x00"
    ),
    "terabytes of empty elements": with_header(header("'<V0'", shape=f"({10**15},)")),
    "terabytes of empty texts": with_header(header("'<U0'", shape=f"({10**15},)")),
    "a large dimension beside an empty one": with_header(header(shape=f"(0, {2**31 - 1})")),
    "large dimensions beside an empty one": with_header(header(shape="(100000, 100000, 0)")),
    "two negative dimensions": with_header(header(shape="(-2, -2)"), bytes(32)),
    "true as a dimension": with_header(header(shape="(True,)"), bytes(8)),
    "a dtype of a thousand levels": with_header(header("[('a'," * 900 + "'<f8'" + ")]" * 900), bytes(8)),
    "code": with_header("__import__('os').getpid()"),
    "parentheses": with_header("(" * 300),
    "minus signs": with_header("-" * 9000 + "1"),
    "digits": with_header(header(shape=f"({'9' * 9000},)")),
    "powers": with_header(header(shape="(9**9**9,)")),
    "unknown key": with_header(header(more="'x': 1"), bytes(8)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_body_that_is_no_plain_array_is_refused(name: str) -> None:
    for read in (
        read_npy,
        TensorPayload.fields_of_raw,
        lambda body: codecs.decode(body, "application/x-npy"),
    ):
        with pytest.raises(BadInput):
            read(REFUSED[name])


@given(damaged_bodies())
@settings(max_examples=80)
@pytest.mark.filterwarnings("error")
def test_a_damaged_body_is_the_array_that_numpy_reads_or_refused_and_takes_no_memory(body: bytes) -> None:
    array = None
    # Once in many thousand new names the interpreter enlarges its table of names by megabytes.
    for _ in range(2):
        with measured() as peak, suppress(BadInput):
            array = read_npy(body)
    assert peak.bytes < 2 * MIB
    if array is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_same(array, np.load(io.BytesIO(body), allow_pickle=False))
