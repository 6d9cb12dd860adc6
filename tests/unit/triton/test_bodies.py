"""A body that would crash Triton is refused; any other is passed on unchanged."""

from __future__ import annotations

import functools
import gzip
import json
import zlib

import pytest

from sm.errors import BadInput, TooLarge, UnsupportedType
from sm.triton.http_proxy import check_json

MAX_BODY_BYTES = 20_000
#: Without a time, so that the bytes are always the same.
gzipped = functools.partial(gzip.compress, mtime=0)


def v2_body(shape: object, **fields: object) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, **fields}]}).encode()


SAFE_BODIES: dict[str, tuple[bytes, dict[str, str]]] = {
    "small tensor": (v2_body([1, 3], data=[1.0, 2.0, 3.0]), {}),
    "empty tensor": (v2_body([0, 2**60], data=[]), {}),
    "scalar": (v2_body([], data=[]), {}),
    "invalid shape": (v2_body(["a", None], data=[1]), {}),
    "empty tensor at its end": (v2_body([2**60, 0], data=[]), {}),
    "not numbers": (v2_body([1], data=[1]).replace(b"[1]", b"[1e9, -5, null, 1.5]", 1), {}),
    "negative shape": (v2_body([-1], data=[1]), {}),
    "empty": (b"", {}),
    "text": (b"no JSON", {}),
    "shape in a text": (b'{"text": "\\"shape\\": [99999999]"}', {}),
    "NaN": (v2_body([1], data=[float("nan")]), {}),
    "nested numbers": (json.dumps({"x": [[1.0]] * 2000}).encode(), {}),
    "nested NaN": (json.dumps({"x": [[float("nan")]] * 2000}).encode(), {}),
    "brackets in a text": (json.dumps({"x": "[" * 2000}).encode(), {}),
    "as deep as may be": (b'{"a":' * 998 + b"[[]]" + b"}" * 998, {}),
    "a text that is not closed": (b'"' + b'\\"[' * 5000, {}),
    "binary": (v2_body([50]) + bytes(200), {"inference-header-content-length": str(len(v2_body([50])))}),
    "only binary": (b'"shape":[9999999999]', {"inference-header-content-length": "0"}),
    "gzip": (gzipped(v2_body([3], data=[1, 2, 3])), {"content-encoding": "gzip"}),
    "deflate": (zlib.compress(v2_body([3], data=[1, 2, 3])), {"content-encoding": "deflate"}),
    "identity": (v2_body([3], data=[1, 2, 3]), {"content-encoding": "identity"}),
    "empty and br": (b"", {"content-encoding": "br"}),
}


@pytest.mark.parametrize("name", SAFE_BODIES)
def test_a_body_that_is_safe_for_triton_is_accepted(name: str) -> None:
    body, headers = SAFE_BODIES[name]
    check_json(body, headers, MAX_BODY_BYTES)


CRASHING_BODIES = {
    "large dimension": v2_body([2**40], data=[1]),
    "three large dimensions": v2_body([1000, 1000, 1000], data=[1]),
    "overflowing product": v2_body([2**62, 2**62], data=[1]),
    "spaces": v2_body([1], data=[1]).replace(b"[1]", b"[ 99999 ]", 1).replace(b'"shape":', b'"shape" :'),
    "escaped key": v2_body([99999], data=[1]).replace(b"shape", b"\\u0073h\\u0061pe"),
    "many nines": b'{"inputs":[{"shape":[' + b"9," * 500_000 + b"9]}]}",
    "many ones": b'{"inputs":[{"shape":[' + b"1," * 500_000 + b"1]}]}",
    "5,000 digits": b'{"inputs":[{"shape":[' + b"9" * 5000 + b"]}]}",
    "many tensors": b'{"inputs":[' + b'{"shape":[1]},' * 50_000 + b"]}",
    "deep list": b'{"inputs":' + b"[" * 2000,
    "deep object": b'{"a":' * 2000 + b"1" + b"}" * 2000,
    "just too deep": b'{"a":' * 1001 + b"1" + b"}" * 1001,
    "deep in a long body": b"[" + b"[]," * 300_000 + b"[" * 1001 + b"]" * 1002,
    "deep after an escaped quote": b'{"a": "\\"", "b": ' + b"[" * 1001 + b"]" * 1001 + b"}",
    "after a text": b'{"a": "' + b"]" * 2000 + b'", "b": ' + b"[" * 2000 + b"]" * 2000 + b"}",
}


@pytest.mark.parametrize("name", CRASHING_BODIES)
@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_a_body_that_would_crash_triton_is_a_400(name: str, encoding: str) -> None:
    content = gzipped(CRASHING_BODIES[name]) if encoding else CRASHING_BODIES[name]
    with pytest.raises(BadInput, match=r"more elements than|dimensions|levels deep"):
        check_json(content, {"content-encoding": encoding}, 2**21)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"not compressed", "is not gzip"),
        (gzipped(b"{}")[:-4], "one whole gzip"),
        (gzipped(b"{}") + gzipped(v2_body([2**40])), "one whole gzip"),
    ],
    ids=["no gzip", "truncated", "two members"],
)
def test_a_body_that_cannot_be_decompressed_is_a_400(body: bytes, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        check_json(body, {"content-encoding": "gzip"}, MAX_BODY_BYTES)


def test_a_body_that_decompresses_to_more_than_the_limit_is_a_413() -> None:
    with pytest.raises(TooLarge):
        check_json(gzipped(bytes(MAX_BODY_BYTES + 1)), {"content-encoding": "gzip"}, MAX_BODY_BYTES)


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "GZIP"])
def test_a_compression_that_triton_does_not_know_is_a_415(encoding: str) -> None:
    with pytest.raises(UnsupportedType, match="only gzip or deflate"):
        check_json(v2_body([3], data=[1, 2, 3]), {"content-encoding": encoding}, MAX_BODY_BYTES)


@pytest.mark.parametrize(
    "size", ["9" * 5000, "1_000", "+5", "-5", " 5", "5 ", "\u0665", "0x5", "nan", "", "1.0"]
)
def test_a_header_size_that_is_not_a_number_of_bytes_is_a_400(size: str) -> None:
    with pytest.raises(BadInput):
        check_json(v2_body([1], data=[1]), {"inference-header-content-length": size}, MAX_BODY_BYTES)


@pytest.mark.parametrize(
    "size", ["31", "2147483648", "999999999999999999", "9" * 5000, "-1", "0x10", "1e3", ""]
)
@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_a_header_size_that_the_body_does_not_have_is_a_400(size: str, encoding: str) -> None:
    """Triton 2.71 ends at one that an int cannot hold."""
    body = b'{"inputs": []}'
    content = gzipped(body) if encoding else body
    headers = {"content-encoding": encoding, "inference-header-content-length": size}
    with pytest.raises(BadInput, match="inference-header-content-length"):
        check_json(content, headers, MAX_BODY_BYTES)
