"""Triton's own protocol, v2: JSON with ``inputs``, the binary form, and its paths below ``/v2``."""

from __future__ import annotations

import re

from sm.errors import UnsupportedType
from sm.http.messages import BINARY
from sm.router.forms.dispatch import STARTS_AS_DISPATCH
from sm.router.forms.form import Form, Reading
from sm.router.request_types import Message, TritonRequest

#: The paths of Triton's own API that run a model.
INFERENCE = re.compile(r"/v2/models/([^/]+)(/versions/[^/]+)?/(infer|generate|generate_stream)")
#: The beginning of a JSON object.
OBJECT = re.compile(rb"\s*\{")
#: A body that begins with one of these members is recognised as v2 without parsing it.
STARTS_AS_V2 = re.compile(rb'\s*\{\s*"(inputs|outputs|id)"\s*:')
#: Content-Encodings that compress a body, so that its bytes are not those of its content type.
COMPRESSIONS = frozenset({"gzip", "x-gzip", "deflate", "compress", "br", "zstd"})


def read_path(message: Message) -> TritonRequest:
    """Read a request to a path of Triton's own."""
    match = INFERENCE.fullmatch(message.target.partition("?")[0])
    assert match is not None
    version = (match[2] or "").removeprefix("/versions/")
    return TritonRequest(message, message.model, version, match[3])


class Binary(Form):
    """The binary form, even a malformed one."""

    def has(self, reading: Reading) -> bool:
        return BINARY in reading.body_type.lower()

    def read(self, reading: Reading) -> TritonRequest:
        return TritonRequest(reading.message, reading.model, reading.address.version, is_binary=True)


class Compressed(Form):
    """A compressed body: Triton decompresses it, and nobody else does."""

    def has(self, reading: Reading) -> bool:
        return reading.message.headers.get("content-encoding", "").strip().lower() in COMPRESSIONS

    def read(self, reading: Reading) -> TritonRequest:
        if reading.is_plain:
            return TritonRequest(reading.message, reading.model, reading.address.version)
        coding = reading.message.headers["content-encoding"].strip().lower()
        raise UnsupportedType(
            f"a body with the Content-Encoding {coding} is not accepted here; send it uncompressed"
        )


class V2(Form):
    """JSON with ``inputs``, of any type that nobody claims: curl and AWS's SDK for JavaScript name others."""

    def has(self, reading: Reading) -> bool:
        is_meant = reading.inference_type == "infer" and has_inputs(reading)
        return is_meant and (reading.client is None or is_v2(reading))

    def read(self, reading: Reading) -> TritonRequest:
        return TritonRequest(reading.message, reading.model, reading.address.version)


def has_inputs(reading: Reading) -> bool:
    """True if a body is a JSON object with ``inputs`` and without ``payload``: Triton's or Hugging Face's."""
    body = reading.body
    if not OBJECT.match(body) or STARTS_AS_DISPATCH.match(body) or b'"inputs"' not in body:
        return False
    if STARTS_AS_V2.match(body):
        return True
    value = reading.value
    return isinstance(value, dict) and "inputs" in value and "payload" not in value


def is_v2(reading: Reading) -> bool:
    """True if its ``inputs`` are tensors, or what may be meant as tensors; also if it is not JSON."""
    value = reading.value
    inputs = value.get("inputs") if isinstance(value, dict) else None
    if "inputs" not in (value or ()):
        return True  # Triton says what is wrong
    return isinstance(inputs, list) and all(
        isinstance(tensor, dict) and "name" in tensor and ("shape" in tensor or "datatype" in tensor)
        for tensor in inputs
    )


BINARY_FORM, COMPRESSED, V2_FORM = Binary(), Compressed(), V2()
