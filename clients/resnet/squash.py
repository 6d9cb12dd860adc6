"""Prepare pictures as the reference system does, for a ResNet without ``preprocess.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sm.client import ImageInput

#: Pixels of a side that the model leaves free.
DEFAULT_SIDE = 224
#: Decode at least this many times the pixels of each side, so that the resize loses no detail.
DECODE_MARGIN = 2


@dataclass(frozen=True)
class Squash:
    """Resize to ``height`` by ``width`` without keeping the aspect ratio, then divide by 255; RGB."""

    height: int
    width: int
    layout: str

    @classmethod
    def of(cls, image: ImageInput) -> Squash:
        return cls(*image.size(DEFAULT_SIDE), image.layout)

    @property
    def decode_size(self) -> tuple[int, int]:
        """Width and height that a JPEG is decoded to at least."""
        return DECODE_MARGIN * self.width, DECODE_MARGIN * self.height

    def __call__(self, pixels: NDArray[np.uint8], size: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """Turn RGB uint8 [height, width, 3] into float32, 0 to 1, in the model's layout."""
        return self.unscaled(pixels, size).astype(np.float32) / np.float32(255)

    def unscaled(
        self,
        pixels: NDArray[np.uint8],
        size: tuple[int, int] | None = None,  # noqa: ARG002  # Preprocessing's signature
    ) -> NDArray[np.uint8]:
        """Return the same in uint8, for a model that divides in its graph."""
        # Pillow, because the reference resizes with its bicubic filter.
        resized: NDArray[Any] = np.asarray(Image.fromarray(pixels).resize((self.width, self.height)))
        return np.ascontiguousarray(resized.transpose(2, 0, 1)) if self.layout == "CHW" else resized
