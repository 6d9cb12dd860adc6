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
    "empty tensor": (v2_body([0, 2**60], data=[]), {}),
    "scalar": (v2_body([], data=[]), {}),
    "invalid shape": (v2_body(["a", None], data=[1]), {}),
    "not numbers": (v2_body([1], data=[1]).replace(b"[1]", b"[1e9, -5, null, 1.5]", 1), {}),
    "empty": (b"", {}),
    "shape in a text": (b'{"text": "\\"shape\\": [99999999]"}', {}),
    "NaN": (v2_body([1], data=[float("nan")]), {}),
    "nested NaN": (json.dumps({"x": [[float("nan")]] * 2000}).encode(), {}),
    "brackets in a text": (json.dumps({"x": "[" * 2000}).encode(), {}),
    "as deep as may be": (b'{"a":' * 998 + b"[[]]" + b"}" * 998, {}),
    "a text that is not closed": (b'"' + b'\\"[' * 5000, {}),
    "binary": (v2_body([50]) + bytes(200), {"inference-header-content-length": str(len(v2_body([50])))}),
    "only binary": (b'"shape":[9999999999]', {"inference-header-content-length": "0"}),
    "gzip": (gzipped(v2_body([3], data=[1, 2, 3])), {"content-encoding": "gzip"}),
    "deflate": (zlib.compress(v2_body([3], data=[1, 2, 3])), {"content-encoding": "deflate"}),
    "empty and br": (b"", {"content-encoding": "br"}),
}


@pytest.mark.parametrize("name", SAFE_BODIES)
def test_a_body_that_is_safe_for_triton_is_accepted(name: str) -> None:
    body, headers = SAFE_BODIES[name]
    check_json(body, headers, MAX_BODY_BYTES)


CRASHING_BODIES = {
    "large dimension": v2_body([2**40], data=[1]),
    "overflowing product": v2_body([2**62, 2**62], data=[1]),
    "spaces": v2_body([1], data=[1]).replace(b"[1]", b"[ 99999 ]", 1).replace(b'"shape":', b'"shape" :'),
    "escaped key": v2_body([99999], data=[1]).replace(b"shape", b"\\u0073h\\u0061pe"),
    "many nines": b'{"inputs":[{"shape":[' + b"9," * 500_000 + b"9]}]}",
    "5,000 digits": b'{"inputs":[{"shape":[' + b"9" * 5000 + b"]}]}",
    "many tensors": b'{"inputs":[' + b'{"shape":[1]},' * 50_000 + b"]}",
    "deep object": b'{"a":' * 2000 + b"1" + b"}" * 2000,
    "deep in a long body": b"[" + b"[]," * 300_000 + b"[" * 1001 + b"]" * 1002,
    "deep after an escaped quote": b'{"a": "\\"", "b": ' + b"[" * 1001 + b"]" * 1001 + b"}",
    "after a text": b'{"a": "' + b"]" * 2000 + b'", "b": ' + b"[" * 2000 + b"]" * 2000 + b"}",
}


@pytest.mark.parametrize("name", CRASHING_BODIES)
@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_a_body_that_would_crash_triton_is_a_400(name: str, encoding: str) -> None:
    content = gzipped(CRASHING_BODIES[name]) if encoding else CRASHING_BODIES[name]
    with pytest.raises(BadInput):
        check_json(content, {"content-encoding": encoding}, 2**21)


#: Each with what is wrong beside the shape: an encoding that is none, or a size of the JSON that the body has not.
BINARY = "inference-header-content-length"
WRONG: list[tuple[bytes, dict[str, str], type[Exception]]] = [
    (b"not compressed", {"content-encoding": "gzip"}, BadInput),
    (gzipped(b"{}")[:-4], {"content-encoding": "gzip"}, BadInput),
    (gzipped(b"{}") + gzipped(v2_body([2**40])), {"content-encoding": "gzip"}, BadInput),
    (gzipped(bytes(MAX_BODY_BYTES + 1)), {"content-encoding": "gzip"}, TooLarge),
    *((v2_body([3]), {"content-encoding": name}, UnsupportedType) for name in ("br", "gzip, gzip", "GZIP")),
    *(
        (v2_body([1], data=[1]), {BINARY: size}, BadInput)
        for size in ("9" * 5000, "1_000", "+5", "-5", " 5", "5 ", "\u0665", "0x5", "nan", "", "1.0", "1e3")
    ),
    # Triton 2.71 ends at one that an int cannot hold.
    *((b'{"inputs": []}', {BINARY: size}, BadInput) for size in ("31", "2147483648", "999999999999999999")),
    (gzipped(b'{"inputs": []}'), {BINARY: "31", "content-encoding": "gzip"}, BadInput),
]


@pytest.mark.parametrize(("body", "headers", "error"), WRONG)
def test_a_body_that_its_headers_do_not_describe_is_refused(
    body: bytes, headers: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        check_json(body, headers, MAX_BODY_BYTES)
