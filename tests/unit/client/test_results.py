"""Results: pictures, and numpy values as JSON."""

from __future__ import annotations

import io

import numpy as np
import orjson
import pytest
from PIL import Image

from sm.client.results import Picture, encodable


def test_a_picture_keeps_its_pixels_through_png() -> None:
    pixels = np.random.default_rng(3).integers(0, 255, (5, 7, 3), np.uint8)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(Picture(pixels).png()))), pixels)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float16(0.5), 0.5),
        (np.int8(3), 3),
        (np.bool_(True), True),
        (np.array(["a", b"b".decode()], object), ["a", "b"]),
        (np.arange(4).reshape(2, 2).T, [[0, 2], [1, 3]]),
        (np.array([1.5], np.float16), [1.5]),
        (np.array(["a", "ü"]), ["a", "ü"]),
        (np.array(1.5), 1.5),
        (np.array("a"), "a"),
    ],
)
def test_numpy_values_are_sent_as_json(value: object, expected: object) -> None:
    assert orjson.loads(orjson.dumps(value, default=encodable, option=orjson.OPT_SERIALIZE_NUMPY)) == expected
