"""Results that are not JSON: pictures and encoded bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pybase64
from numpy.typing import NDArray

from sm.decoded_base64 import DecodedBase64


@dataclass(frozen=True)
class Picture:
    """A rendered picture, RGB uint8 [height, width, 3]: PNG bytes to a caller that accepts them."""

    pixels: NDArray[np.uint8]

    def png(self) -> bytes:
        import cv2  # only who draws pictures waits for it

        done, encoded = cv2.imencode(".png", self.pixels[..., ::-1])
        if not done:
            raise ValueError(f"a picture of shape {self.pixels.shape} cannot be encoded as PNG")
        content: bytes = encoded.tobytes()
        return content

    def as_json(self) -> dict[str, str]:
        """The same PNG where the answer is JSON."""
        return {"image": pybase64.b64encode(self.png()).decode(), "content_type": "image/png"}


@dataclass(frozen=True)
class Encoded:
    """An answer whose bytes the client has made itself: it goes out as it is, with nothing around it."""

    body: bytes
    content_type: str


def encodable(value: object) -> Any:
    """Python values that :mod:`orjson` does not know: NumPy scalars and non-contiguous arrays."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value) if value.dtype != np.object_ else value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, DecodedBase64):
        return value.text
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")
