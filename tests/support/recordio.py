"""RecordIO bodies."""

from __future__ import annotations

import struct

#: The number of each tensor's field in a value, and how its elements are packed.
FLOAT32, FLOAT64, INT32 = (2, "f"), (3, "d"), (7, "")


def part(number: int, data: bytes) -> bytes:
    """A field of bytes; all lengths here are below 128."""
    return bytes([number << 3 | 2, len(data)]) + data


def record(
    values: list[float],
    keys: list[int] | None = None,
    kind: tuple[int, str] = FLOAT32,
    name: bytes = b"values",
) -> bytes:
    number, code = kind
    packed = struct.pack(f"<{len(values)}{code}", *values) if code else bytes(map(int, values))
    tensor = part(1, packed) + (part(2, bytes(keys)) if keys else b"")
    # A label too, which nobody reads.
    entry = part(1, part(1, name) + part(2, part(number, tensor)))
    data = entry + part(2, part(1, b"values") + part(2, part(2, part(1, struct.pack("<f", 9)))))
    return struct.pack("<II", 0xCED7230A, len(data)) + data + b"\0" * (-len(data) % 4)
