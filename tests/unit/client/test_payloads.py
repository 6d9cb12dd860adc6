"""Payloads: which images, texts and tensors a caller may send, and how base64 and ``.npy`` are read."""

from __future__ import annotations

import ast
import base64
import gc
import io
import json
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from PIL import Image

from sm.client.payloads import (
    MIN_BASE64_BYTES,
    Base64Bytes,
    DecodedBase64,
    ImagePayload,
    Payload,
    TensorPayload,
    TextPayload,
    parse_body,
    read_npy,
)
from sm.errors import BadInput
from sm.plugins.toolkit import codecs
from sm.router.answers import dumps
from sm.router.classify import DispatchRequest
from sm.router.dispatch import validate_payload
from tests.support.npy_bodies import ARRAYS, encode_npy, mutated_bodies


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


def test_a_picture_is_decoded_once() -> None:
    payload = ImagePayload.model_validate({"image": png_bytes()})
    assert payload.pixels is payload.pixels


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


def test_the_schema_says_that_an_image_is_base64() -> None:
    schema = ImagePayload.model_json_schema()
    assert schema["properties"]["image"]["contentEncoding"] == "base64"
    assert schema["additionalProperties"] is False
    assert json.dumps(schema)


LONG_BASE64 = "ACGT" * MIN_BASE64_BYTES
OTHER_BASE64 = "Zm9v" * MIN_BASE64_BYTES
NON_CANONICAL_BASE64 = "A" * 2 * MIN_BASE64_BYTES + "QR=="


def json_value(value: Any) -> Any:
    return json.loads(dumps(value))


#: A document, and how many of its strings are decoded where they lie.
DOCUMENTS = {
    "bare payload": (dumps({"payload": LONG_BASE64}), 1),
    "two fields": (dumps({"payload": {"image": LONG_BASE64, "more": [1, "b"], "mask": OTHER_BASE64}}), 2),
    "list": (dumps({"payload": [{"image": LONG_BASE64}, OTHER_BASE64, 3]}), 2),
    "not canonical": (dumps({"payload": NON_CANONICAL_BASE64}), 0),
    "not base64": (dumps({"payload": LONG_BASE64 + "é"}), 0),
    "after an escaped quote": (b'{"payload": "\\"' + LONG_BASE64.encode() + b'"}', 0),
    "numbers": (dumps({"payload": [1] * MIN_BASE64_BYTES}), 0),
    "nested": (dumps({"payload": {"deep": {"er": LONG_BASE64}}}), 0),
    "parameters": (dumps({"payload": {"image": LONG_BASE64}, "parameters": {"other": OTHER_BASE64}}), 0),
    "as key": (dumps({"payload": {LONG_BASE64: 1}}), 0),
    "no object": (dumps([LONG_BASE64]), 0),
    "payload twice": (b'{"payload": "' + LONG_BASE64.encode() + b'", "payload": 1}', 0),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_parsed_document_is_the_same_as_with_orjson(name: str) -> None:
    body, decoded_count = DOCUMENTS[name]
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
    client: Any = FakeClient()
    payload = validate_payload(client, DispatchRequest("both", [record], client=client), record)
    assert isinstance(payload, BytesAndTextPayload)
    assert payload.image is decoded.content
    assert payload.letters == payload.anything == "ABCD" * 10
    bare_payload = validate_payload(client, DispatchRequest("both", [decoded], client=client), decoded)
    assert isinstance(bare_payload, BytesAndTextPayload)
    assert bare_payload.image is decoded.content


SEED, BODIES = 13, 6000
#: What reading one of the mutated bodies may take.
MAX_BYTES = 2 * 2**20


def npy_with_header(text: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    header_size = len(text.encode()).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + header_size + text.encode() + data


def npy_with(descr: object, shape: object, data: bytes = b"", order: object = False) -> bytes:
    return npy_with_header(f"{{'descr': {descr!r}, 'fortran_order': {order!r}, 'shape': {shape}, }}\n", data)


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("version", [None, (2, 0)])
def test_arrays_that_numpy_writes_are_read(name: str, version: tuple[int, int] | None) -> None:
    array = ARRAYS[name]
    read = read_npy(encode_npy(array, version))
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.flags.f_contiguous == array.flags.f_contiguous
    np.testing.assert_array_equal(read, array)
    assert read.flags.writeable


def test_bytes_after_the_array_are_ignored_as_numpy_ignores_them() -> None:
    np.testing.assert_array_equal(read_npy(encode_npy(ARRAYS["float"]) + b"more"), ARRAYS["float"])


def npz_archive() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, a=np.arange(3))
    return stream.getvalue()


INVALID_BODIES = {
    "empty": b"",
    "not npy": b"hello",
    "npz archive": npz_archive(),
    "pickle": encode_npy(np.array([{"a": 1}], object)),
    "object field": npy_with([("a", "O")], (1,), bytes(8)),
    "truncated": encode_npy(np.arange(100))[:-10],
    "version 9": b"\x93NUMPY\x09\x00\x10\x00" + b" " * 16,
    "header longer than the body": b"\x93NUMPY\x01\x00\xff\xff{",
    "header of 4 GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "header of 100 KB": npy_with_header(
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}}{' ' * 100_000}", version=b"\x02\x00"
    ),
    "terabytes": npy_with("<f8", (10**12,), bytes(8)),
    "terabytes of empty elements": npy_with("<V0", (10**15,)),
    "terabytes of empty texts": npy_with("<U0", (10**15,)),
    "terabytes in one element": npy_with(("<f8", (10**12,)), (1,), bytes(8)),
    "texts of gigabytes": npy_with("<U1000000000", (1,)),
    "a shape that overflows": npy_with("<f8", (2**62, 2**62), bytes(8)),
    "a large dimension beside an empty one": npy_with("<f8", (0, 2**62)),
    "a negative dimension": npy_with("<f8", (-1,), bytes(8)),
    "two negative dimensions": npy_with("<f8", (-2, -2), bytes(32)),
    "true as a dimension": npy_with("<f8", (True,), bytes(8)),
    "a float as a dimension": npy_with("<f8", (1.0,), bytes(8)),
    "shape is not a tuple": npy_with("<f8", 1, bytes(8)),
    "65 dimensions": npy_with("<f8", (1,) * 65, bytes(8)),
    "unknown dtype": npy_with("what", (1,), bytes(8)),
    "a number as dtype": npy_with(7, (1,), bytes(8)),
    "a dtype of a thousand levels": npy_with("<f8", (1,)).replace(
        b"'<f8'", b"[('a'," * 900 + b"'<f8'" + b")]" * 900
    ),
    "order is not a boolean": npy_with("<f8", (1,), bytes(8), order=1),
    "code": npy_with_header("__import__('os').abort()"),
    "parentheses": npy_with_header("(" * 9000),
    "minus signs": npy_with_header("-" * 9000 + "1"),
    "powers": npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (9**9**9,)}"),
    "digits": npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 9000 + ",)}"),
    "header is not a dict": npy_with_header("['descr', 'fortran_order', 'shape']"),
    "unknown key": npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (0,), 'x': 1}"),
    "zero byte": npy_with_header("{'descr': '<f4'\0}"),
    "not UTF-8": b"\x93NUMPY\x03\x00\x04\x00\x00\x00\xff\xff\xff\xff",
    "invalid escape": npy_with_header(r"{'descr': '\x3cf4\q', 'fortran_order': False, 'shape': (0,)}"),
}


@pytest.mark.parametrize("name", INVALID_BODIES)
def test_a_body_that_is_no_plain_array_is_refused(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadInput, match=r"not a \.npy array"):
            read_npy(INVALID_BODIES[name])


@pytest.mark.parametrize(
    ("read_body", "count"),
    [
        (read_npy, BODIES),
        # The other two call it.
        (lambda body: TensorPayload.model_validate(TensorPayload.fields_of_raw(body)).array, BODIES // 10),
        (lambda body: codecs.decode(body, "application/x-npy"), BODIES // 10),
    ],
    ids=["reader", "payload", "toolkit"],
)
def test_a_mutated_body_is_an_array_or_refused_and_takes_no_memory(
    read_body: Callable[[bytes], Any], count: int
) -> None:
    outcomes = {"array": 0, "refused": 0}

    def measure(body: bytes) -> tuple[str, int]:
        """Return what became of a body, and the bytes that it took at most."""
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        try:
            assert isinstance(read_body(body), np.ndarray)
            outcome = "array"
        except BadInput as error:
            assert "\n" not in error.sentence
            outcome = "refused"
        return outcome, tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for body in mutated_bodies(SEED, count):
                outcome, peak_bytes = measure(body)
                outcomes[outcome] += 1
                # Once in many thousand new names the interpreter enlarges its table of names by megabytes.
                assert peak_bytes < MAX_BYTES or measure(body)[1] < MAX_BYTES, body
        gc.collect()
        # That table is enlarged in ast.parse.
        without_names = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, ast.__file__)])
        assert sum(statistic.size for statistic in without_names.statistics("filename")) < MAX_BYTES
    finally:
        tracemalloc.stop()
    assert min(outcomes.values()) > count / 60, outcomes
