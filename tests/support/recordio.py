"""Encode tensors as RecordIO, the protobuf format of SageMaker's built-in algorithms."""

from __future__ import annotations

import struct

#: Each type's field number in the protobuf message, and its struct code.
FLOAT32, FLOAT64, INT32 = (2, "f"), (3, "d"), (7, "")


def encode_field(number: int, data: bytes) -> bytes:
    """Encode a field of bytes, which must be shorter than 128."""
    return bytes([number << 3 | 2, len(data)]) + data


def encode_record(
    values: list[float],
    keys: list[int] | None = None,
    kind: tuple[int, str] = FLOAT32,
    name: bytes = b"values",
) -> bytes:
    number, code = kind
    packed = struct.pack(f"<{len(values)}{code}", *values) if code else bytes(map(int, values))
    tensor = encode_field(1, packed) + (encode_field(2, bytes(keys)) if keys else b"")
    # A label, which the box ignores.
    entry = encode_field(1, encode_field(1, name) + encode_field(2, encode_field(number, tensor)))
    data = entry + encode_field(
        2,
        encode_field(1, b"values") + encode_field(2, encode_field(2, encode_field(1, struct.pack("<f", 9)))),
    )
    return struct.pack("<II", 0xCED7230A, len(data)) + data + b"\0" * (-len(data) % 4)
