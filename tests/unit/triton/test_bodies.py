"""A body that Triton would not outlive is refused; any other reaches it as it is."""

from __future__ import annotations

import functools
import gzip
import json
import zlib
from collections.abc import Mapping

import pytest

from sm.errors import BadInput, TooLarge, UnsupportedType
from sm.triton.unsafe_json import check

LARGEST = 20_000
#: The same bytes each time: they are part of tests' names.
packed = functools.partial(gzip.compress, mtime=0)


def tensor(shape: object, **more: object) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, **more}]}).encode()


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (tensor([1, 3], data=[1.0, 2.0, 3.0]), {}),
        (tensor([0, 2**60], data=[]), {}),
        (tensor([], data=[]), {}),
        (tensor(["a", None], data=[1]), {}),
        (tensor([-1], data=[1]), {}),
        (b"", {}),
        (b"no JSON", {}),
        (b'{"text": "\\"shape\\": [99999999]"}', {}),
        (tensor([1], data=[float("nan")]), {}),
        (json.dumps({"x": [[1.0]] * 2000}).encode(), {}),
        (json.dumps({"x": [[float("nan")]] * 2000}).encode(), {}),
        (json.dumps({"x": "[" * 2000}).encode(), {}),
        (tensor([50]) + bytes(200), {"inference-header-content-length": str(len(tensor([50])))}),
        (b'"shape":[9999999999]', {"inference-header-content-length": "0"}),
        (packed(tensor([3], data=[1, 2, 3])), {"content-encoding": "gzip"}),
        (zlib.compress(tensor([3], data=[1, 2, 3])), {"content-encoding": "deflate"}),
        (tensor([3], data=[1, 2, 3]), {"content-encoding": "identity"}),
        (b"", {"content-encoding": "br"}),
    ],
)
def test_what_triton_outlives_is_triton_s_to_judge(body: bytes, headers: Mapping[str, str]) -> None:
    check(body, headers, LARGEST)


@pytest.mark.parametrize(
    "body",
    [
        tensor([2**40], data=[1]),
        tensor([1000, 1000, 1000], data=[1]),
        tensor([2**62, 2**62], data=[1]),
        tensor([1], data=[1]).replace(b"[1]", b"[ 99999 ]", 1).replace(b'"shape":', b'"shape" :'),
        tensor([99999], data=[1]).replace(b"shape", b"\\u0073h\\u0061pe"),
        b'{"inputs":' + b"[" * 2000,
        b'{"a":' * 2000 + b"1" + b"}" * 2000,
        b'{"a": "' + b"]" * 2000 + b'", "b": ' + b"[" * 2000 + b"]" * 2000 + b"}",
    ],
)
@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_what_would_be_the_end_of_triton_is_a_400(body: bytes, encoding: str) -> None:
    sent = packed(body) if encoding else body
    with pytest.raises(BadInput, match=r"elements cannot be in a body|levels deep"):
        check(sent, {"content-encoding": encoding}, LARGEST)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"not packed", "is not gzip"),
        (packed(b"{}")[:-4], "one whole gzip"),
        (packed(b"{}") + packed(tensor([2**40])), "one whole gzip"),
    ],
)
def test_what_cannot_be_unpacked_is_a_400(body: bytes, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        check(body, {"content-encoding": "gzip"}, LARGEST)


def test_a_body_that_unpacks_to_more_than_the_limit_is_a_413() -> None:
    with pytest.raises(TooLarge):
        check(packed(bytes(LARGEST + 1)), {"content-encoding": "gzip"}, LARGEST)


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "GZIP"])
def test_a_compression_that_triton_does_not_know_is_a_415(encoding: str) -> None:
    with pytest.raises(UnsupportedType, match="only gzip or deflate"):
        check(tensor([3], data=[1, 2, 3]), {"content-encoding": encoding}, LARGEST)
