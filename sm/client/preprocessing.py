"""Turn pixels into a classifier's input, as ``preprocess.json`` beside the model's config says."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import Self

from sm.client.images import resize, shrink, split
from sm.errors import StartError

Three = tuple[float, float, float]
Deviations = tuple[
    Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]
]


class Normalisation(BaseModel):
    """What ``preprocess.json`` says of a pixel's value: ``(pixel * scale - mean) / std`` of each channel.

    It stands in the description of any model that takes a picture; what else stands there is the client's.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    scale: float = Field(default=1.0, gt=0, description="Pixels are 0..255 before it.")
    mean: Three = (0.0, 0.0, 0.0)
    std: Deviations = (1.0, 1.0, 1.0)
    layout: Literal["CHW", "HWC"] = "CHW"

    @classmethod
    def read(cls, path: Path) -> Self:
        """:class:`StartError` names the file and the field."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise StartError(f"{path} cannot be read: {error.strerror}.") from None
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "the file"
            raise StartError(f"{path}: {field}: {first['msg']}.") from None

    @cached_property
    def factor(self) -> NDArray[np.float32]:
        """Of each channel: the formula is one multiplication by it, then one subtraction of ``offset``."""
        return np.array(self.scale / np.array(self.std), np.float32)

    @cached_property
    def offset(self) -> NDArray[np.float32]:
        return np.array(np.array(self.mean) / np.array(self.std), np.float32)

    def reshape(self, channels: NDArray[np.float32]) -> NDArray[np.float32]:
        """A number for each channel [3], so that it meets its own in a batch of pictures."""
        return channels.reshape((1, 3, 1, 1) if self.layout == "CHW" else (1, 1, 1, 3))


class Preprocessing(Normalisation):
    """``preprocess.json`` of an image classifier: a centre square, resized and normalised.

    The square is what would be left if the short side were resized to ``resize`` and the centre
    cropped to ``crop``; it is cut out of the original first, to whole pixels, so that nothing is
    resized in vain. A Keras ResNet50 and a torchvision one differ in this description alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    resize: int = Field(ge=1, le=4096, description="The short side before cropping, in pixels.")
    crop: int = Field(ge=1, le=4096, description="The side of the square that the model takes.")
    channels: Literal["RGB", "BGR"] = Field(description="Their order; mean and std are in it too.")
    # 2: twice the pixels that the model takes leave the averaging something to average. What other values
    # cost and change is in bench/reports/photos.md (python -m bench.accuracy).
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
    def decode_size(self) -> tuple[int, int]:
        """For :meth:`ImagePayload.pixels_at_least <sm.client.ImagePayload.pixels_at_least>`."""
        side = math.ceil(self.decode_margin * self.resize)
        return side, side

    def __call__(self, pixels: NDArray[np.uint8], size: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """RGB uint8 [height, width, 3] to contiguous float32 [3, crop, crop], or [crop, crop, 3].

        ``size``: width and height of the whole picture, where ``pixels`` may have been decoded smaller.
        """
        tensor = np.empty((3, self.crop, self.crop), np.float32)
        for plane, out, factor, offset in zip(
            self._planes(pixels, size), tensor, self.factor, self.offset, strict=True
        ):
            # One pass from uint8 to float32, one in place: 0.08 ms instead of 1.3 for the plain formula.
            np.multiply(plane, factor, out=out, dtype=np.float32)
            out -= offset
        return self._apply_layout(tensor)

    def unscaled(self, pixels: NDArray[np.uint8], size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """The same in uint8, its values as they are: for a model that has the rest in its graph."""
        return self._apply_layout(np.stack(self._planes(pixels, size)))

    def square(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The centred square that the model sees, in the picture's own pixels."""
        height, width = pixels.shape[:2]
        side = max(1, round(min(height, width) * self.crop / self.resize))
        top, left = (height - side) // 2, (width - side) // 2
        return pixels[top : top + side, left : left + side]

    def _planes(self, pixels: NDArray[np.uint8], size: tuple[int, int] | None) -> list[NDArray[np.uint8]]:
        square = self.square(pixels)
        make = shrink if size and size != pixels.shape[1::-1] else resize
        planes = list(split(make(square, self.crop, self.crop)))
        return planes if self.channels == "RGB" else planes[::-1]

    def _apply_layout(self, tensor: NDArray[Any]) -> NDArray[Any]:
        return tensor if self.layout == "CHW" else np.ascontiguousarray(tensor.transpose(1, 2, 0))
