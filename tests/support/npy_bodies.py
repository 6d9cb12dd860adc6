"""Make request bodies in NumPy's .npy format, valid and mutated."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

ARRAYS: dict[str, NDArray[Any]] = {
    "float": np.arange(12, dtype=np.float32).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "big endian": np.arange(5, dtype=">i8"),
    "scalar": np.array(7, np.uint8),
    "empty": np.zeros((0, 3), np.int16),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j]),
    "text": np.array(["ab", "c"]),
    "bytes": np.array([b"ab", b"c"]),
    "date": np.array(["2026-01-01"], "datetime64[D]"),
    "rows": np.array([(1, 2.5)], [("a", "<i4"), ("b", "<f8", (1,))]),
    "many dimensions": np.zeros((1,) * 32, np.float16),
}


def encode_npy(array: NDArray[Any], version: tuple[int, int] | None = None) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version, allow_pickle=True)  # type: ignore[no-untyped-call]
    return stream.getvalue()


def mutated_bodies(seed: int, count: int) -> Iterator[bytes]:
    """Yield ``count`` bodies written by NumPy with random changes, most of them in the header."""
    random_source = random.Random(seed)
    bodies = [encode_npy(array, version) for array in ARRAYS.values() for version in ((1, 0), (2, 0), (3, 0))]
    words = [
        b"(",
        b")",
        b"'",
        b"-",
        b"9" * 20,
        b"0",
        b"'|O'",
        b"True",
        b"\\",
        b"L",
        b"\0",
        b"<U9",
        b"V0",
        b"PK\3\4",
    ]
    for _ in range(count):
        body = bytearray(random_source.choice(bodies))
        if random_source.random() < 0.3:
            # Usually this changes a number of the array, not the header.
            body[-random_source.randint(1, 8)] = random_source.randrange(256)
            yield bytes(body)
            continue
        for _ in range(random_source.choice([1, 1, 2, 5])):
            at = random_source.randrange(min(len(body), random_source.choice([12, 80, 80, 10_000, 10_000])))
            match random_source.randrange(4):
                case 0:
                    body[at] = random_source.randrange(256)
                case 1:
                    word = random_source.choice(words)
                    body[at : at + len(word)] = word
                case 2:
                    body[at:at] = random_source.choice(words)
                case 3:
                    del body[at : at + random_source.randint(1, 9)]
            if not body:
                body = bytearray(b"\x93")
        yield bytes(body)
