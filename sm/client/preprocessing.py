"""Turn pixels into a classifier's input, as ``preprocess.json`` beside ``config.pbtxt`` describes it."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

from sm.client.images import resize, shrink, split
from sm.client.payloads import read_description

PerChannel = tuple[float, float, float]
Deviation = Annotated[float, Field(gt=0)]
Deviations = tuple[Deviation, Deviation, Deviation]


class Normalisation(BaseModel):
    """How ``preprocess.json`` normalises each channel: ``(pixel * scale - mean) / std``.

    Any model that takes a picture has these fields; a client may add its own in a subclass.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    scale: float = Field(default=1.0, gt=0, description="Pixels are 0 to 255 before it.")
    mean: PerChannel = (0.0, 0.0, 0.0)
    std: Deviations = (1.0, 1.0, 1.0)
    layout: Literal["CHW", "HWC"] = "CHW"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the description.

        Args:
            path: The ``preprocess.json``.

        Raises:
            sm.errors.StartError: The file cannot be read or a field is wrong; the sentence names both.
        """
        return read_description(cls, path)

    @cached_property
    def factor(self) -> NDArray[np.float32]:
        """``scale / std``, float32 [3]: the formula is ``pixel * factor - offset``."""
        return np.array(self.scale / np.array(self.std), np.float32)

    @cached_property
    def offset(self) -> NDArray[np.float32]:
        """``mean / std``, float32 [3]."""
        return np.array(np.array(self.mean) / np.array(self.std), np.float32)

    def reshape(self, channels: NDArray[np.float32]) -> NDArray[np.float32]:
        """Reshape one number for each channel [3], so that NumPy broadcasts it over a batch of pictures."""
        return channels.reshape((1, 3, 1, 1) if self.layout == "CHW" else (1, 1, 1, 3))


class Preprocessing(Normalisation):
    """The ``preprocess.json`` of an image classifier: resize the short side, crop the centre, normalise.

    The square that the crop would leave is cut out of the original first, in whole pixels, so no pixel is
    resized in vain. A ResNet50 of Keras and one of torchvision differ in this file only.

    Example::

        preprocessing = Preprocessing.read(repository / "resnet" / "preprocess.json")
        pixels = payload.pixels_at_least(*preprocessing.decode_size)
        tensor = preprocessing(pixels, payload.size)
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    resize: int = Field(ge=1, le=4096, description="The short side before cropping, in pixels.")
    crop: int = Field(ge=1, le=4096, description="The side of the square that the model takes.")
    fit: Literal["crop", "squash"] = Field(
        default="crop",
        description="squash: the whole picture becomes the square.",
    )
    channels: Literal["RGB", "BGR"] = Field(description="The model's order, also of mean and std.")
    # 2: resizing averages at least two by two pixels. bench/reports/photos.md compares other values.
    decode_margin: float = Field(
        default=2.0,
        ge=1,
        description="A large JPEG is decoded to no fewer pixels of each side than this many times `resize`.",
    )

    @model_validator(mode="after")
    def _crop_is_within(self) -> Preprocessing:
        if self.crop > self.resize:
            raise ValueError(f"crop {self.crop} is larger than resize {self.resize}")
        return self

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of every input."""
        return self.crop, self.crop

    @property
    def keeps_whole(self) -> bool:
        """True if the input shows the whole picture."""
        return self.fit == "squash"

    @property
    def decode_size(self) -> tuple[int, int]:
        """Width and height in pixels for :meth:`~sm.client.ImagePayload.pixels_at_least`."""
        side = math.ceil(self.decode_margin * self.resize)
        return side, side

    def __call__(self, pixels: NDArray[np.uint8], size: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """Crop, resize and normalise a picture.

        Args:
            pixels: RGB uint8 [height, width, 3].
            size: Width and height of the original, if ``pixels`` may have been decoded at a smaller scale.

        Returns:
            Contiguous float32 [3, crop, crop], or [crop, crop, 3] if ``layout`` is ``HWC``.
        """
        # One pass from uint8 to float32, one in place: 0.08 ms instead of 1.3 for the plain formula.
        tensor = np.multiply(self._planes(pixels, size), self.factor[:, None, None], dtype=np.float32)
        tensor -= self.offset[:, None, None]
        return tensor if self.layout == "CHW" else np.ascontiguousarray(tensor.transpose(1, 2, 0))

    def unscaled(self, pixels: NDArray[np.uint8], size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """Crop and resize a picture without normalising it, for a model whose graph does that.

        Args:
            pixels: RGB uint8 [height, width, 3].
            size: Width and height of the original, if ``pixels`` may have been decoded at a smaller scale.

        Returns:
            Contiguous uint8 [3, crop, crop], or [crop, crop, 3] if ``layout`` is ``HWC``.
        """
        planes = self._planes(pixels, size)
        return planes if self.layout == "CHW" else np.ascontiguousarray(planes.transpose(1, 2, 0))

    def centre_square(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the centre square that the model sees, as a view of the picture's own pixels."""
        if self.fit == "squash":
            return pixels
        height, width = pixels.shape[:2]
        side = max(1, round(min(height, width) * self.crop / self.resize))
        top, left = (height - side) // 2, (width - side) // 2
        return pixels[top : top + side, left : left + side]

    def _planes(self, pixels: NDArray[np.uint8], size: tuple[int, int] | None) -> NDArray[np.uint8]:
        """Return the channels of the resized square, in the model's order: uint8 [3, crop, crop]."""
        square = self.centre_square(pixels)
        resize_square = shrink if size and size != pixels.shape[1::-1] else resize
        planes = split(resize_square(square, self.crop, self.crop))
        ordered = planes if self.channels == "RGB" else planes[::-1]
        return np.concatenate(ordered).reshape(3, self.crop, self.crop)
