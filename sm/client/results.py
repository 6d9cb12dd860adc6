"""Results that are not JSON: pictures and encoded bodies."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pybase64
from numpy.typing import NDArray

from sm.client.decoded_base64 import DecodedBase64

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Picture:
    """A picture as a result: PNG if the caller accepts ``image/png``, else base64 in JSON."""

    #: RGB uint8 [height, width, 3].
    pixels: NDArray[np.uint8]

    def png(self) -> bytes:
        """Encode the picture as PNG.

        Raises:
            ValueError: The array has a shape that is not a picture's.
        """
        import cv2  # takes 0.1 s to import, and few clients draw

        encoded_ok, encoded = cv2.imencode(".png", self.pixels[..., ::-1])
        if not encoded_ok:
            raise ValueError(f"a picture of shape {self.pixels.shape} cannot be encoded as PNG")
        content: bytes = encoded.tobytes()
        return content

    def as_json(self) -> dict[str, str]:
        """Return the PNG as base64 with its content type, for a JSON answer."""
        return {"image": pybase64.b64encode(self.png()).decode(), "content_type": "image/png"}


@dataclass(frozen=True)
class Encoded:
    """A result that the client encoded itself, such as a recording; it is the answer's body, unchanged.

    In the answer to a list of payloads it is ``{"body": base64, "content_type"}``.

    Example::

        return Encoded(wav, "audio/wav")
    """

    body: bytes
    content_type: str

    def as_json(self) -> dict[str, str]:
        """Return the body as base64 with its content type, for an entry of a list."""
        return {"body": pybase64.b64encode(self.body).decode(), "content_type": self.content_type}


def encodable(value: object) -> Any:
    """Convert a value that :mod:`orjson` does not know: NumPy scalars, texts, odd arrays, pictures, files."""
    if isinstance(value, np.ndarray):
        has_rows = value.ndim > 0 and value.dtype.kind in "biufM"
        return np.ascontiguousarray(value) if has_rows else value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, DecodedBase64):
        return value.text
    if isinstance(value, Picture | Encoded):
        return value.as_json()
    if is_dataclass(value) and not isinstance(value, type):
        return public_fields(value)
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


def public_fields(value: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass without those that begin with an underscore, as :mod:`orjson` does."""
    return {part.name: getattr(value, part.name) for part in fields(value) if not part.name.startswith("_")}
