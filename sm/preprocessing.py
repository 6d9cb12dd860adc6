"""How pixels become a classifier's input: a property of the model, told by a file beside its config."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sm.errors import StartError
from sm.image import resize, split

Three = tuple[float, float, float]


class Preprocessing(BaseModel):
    """``preprocess.json`` of an image classifier: a centre square, resized, ``(pixel * scale - mean) / std``.

    The square is what would be left if the short side were resized to ``resize`` and the centre
    cropped to ``crop``; it is cut out of the original first, to whole pixels, so that nothing is
    resized in vain. A Keras ResNet50 and a torchvision one differ in this description alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    resize: int = Field(ge=1, le=4096, description="The short side before cropping, in pixels.")
    crop: int = Field(ge=1, le=4096, description="The side of the square that the model takes.")
    channels: Literal["RGB", "BGR"] = Field(description="Their order; mean and std are in it too.")
    scale: float = Field(default=1.0, gt=0, description="Pixels are 0..255 before it.")
    mean: Three = (0.0, 0.0, 0.0)
    std: tuple[
        Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]
    ] = (1.0, 1.0, 1.0)
    layout: Literal["CHW", "HWC"] = "CHW"

    @model_validator(mode="after")
    def _crop_is_within(self) -> Preprocessing:
        if self.crop > self.resize:
            raise ValueError(f"crop {self.crop} is larger than resize {self.resize}")
        return self

    @classmethod
    def read(cls, path: Path) -> Preprocessing:
        """:class:`StartError` names the file and the field."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise StartError(f"{path} cannot be read: {error.strerror}.") from None
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "the file"
            raise StartError(f"{path}: {field}: {first['msg']}.") from None

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """RGB uint8 [height, width, 3] to contiguous float32 [3, crop, crop], or [crop, crop, 3]."""
        planes = split(resize(self.square(pixels), self.crop, self.crop))
        if self.channels == "BGR":
            planes = planes[::-1]
        tensor = np.empty((3, self.crop, self.crop), np.float32)
        for plane, out, factor, offset in zip(planes, tensor, *self._linear, strict=True):
            # One pass from uint8 to float32, one in place: 0.08 ms instead of 1.3 for the plain formula.
            np.multiply(plane, factor, out=out, dtype=np.float32)
            out -= offset
        return tensor if self.layout == "CHW" else np.ascontiguousarray(tensor.transpose(1, 2, 0))

    def square(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The centred square that the model sees, in the picture's own pixels."""
        height, width = pixels.shape[:2]
        side = max(1, round(min(height, width) * self.crop / self.resize))
        top, left = (height - side) // 2, (width - side) // 2
        return pixels[top : top + side, left : left + side]

    @cached_property
    def _linear(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Factor and offset of each channel: the whole formula as one multiplication and one subtraction."""
        std = np.array(self.std)
        return (self.scale / std).astype(np.float32), (np.array(self.mean) / std).astype(np.float32)
