"""Pictures for a ResNet that brings no ``preprocess.json``, as the reference system prepares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sm.client import ImageInput

#: Pixels of each side where the model takes any.
DEFAULT_SIDE = 224
#: So many times the pixels of each side are decoded at least.
DECODE_MARGIN = 2


@dataclass(frozen=True)
class Squash:
    """RGB, resized to ``height`` by ``width`` whatever its shape was, divided by 255."""

    height: int
    width: int
    layout: str

    @classmethod
    def of(cls, image: ImageInput) -> Squash:
        return cls(*image.size(DEFAULT_SIDE), image.layout)

    @property
    def decode_size(self) -> tuple[int, int]:
        """Width and height that are enough of a picture: it loses nothing that a model could see."""
        return DECODE_MARGIN * self.width, DECODE_MARGIN * self.height

    def __call__(self, pixels: NDArray[np.uint8], size: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """RGB uint8 [height, width, 3] to float32, 0 to 1, in the model's layout."""
        return self.unscaled(pixels, size).astype(np.float32) / np.float32(255)

    def unscaled(
        self,
        pixels: NDArray[np.uint8],
        size: tuple[int, int] | None = None,  # noqa: ARG002  # Preprocessing's signature
    ) -> NDArray[np.uint8]:
        """The same in uint8, for a model that divides in its graph."""
        # Pillow, since its bicubic filter is the reference's.
        resized: NDArray[Any] = np.asarray(Image.fromarray(pixels).resize((self.width, self.height)))
        return np.ascontiguousarray(resized.transpose(2, 0, 1)) if self.layout == "CHW" else resized
