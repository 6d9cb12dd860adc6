"""Fit a picture of any size into the model's input, and map boxes back to the picture."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sm.client import ImageInput, shrink
from sm.errors import StartError

log = logging.getLogger(__name__)

Pixels = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]
Side = Annotated[int, Field(gt=0, le=8192)]

#: Pixels of a side if neither ``preprocess.json`` nor the model sets it.
DEFAULT_SIDE = 640
#: The grey of the bars without ``preprocess.json``: the reference's. Ultralytics uses 114.
DEFAULT_FILL = 128


@dataclass(frozen=True)
class Placement:
    """The position and size of a picture in the model's input, and its own size, all in pixels."""

    left: int
    top: int
    width: int
    height: int
    picture_width: int
    picture_height: int

    @property
    def picture_size(self) -> tuple[int, int]:
        """Width and height of the picture that was sent."""
        return self.picture_width, self.picture_height

    def to_picture(self, boxes: Floats) -> Floats:
        """Map boxes [n, 4] (x1, y1, x2, y2) from the input's pixels to the picture's, clipped to it."""
        size = np.array(self.picture_size * 2)
        # One ratio for each axis: rounding to whole pixels may stretch a narrow picture.
        ratio = size / np.array((self.width, self.height) * 2)
        mapped: Floats = (boxes - np.array((self.left, self.top) * 2)) * ratio
        return np.clip(mapped, 0, size)


class Letterbox(BaseModel):
    """How a model wants its input, as ``preprocess.json`` in its folder says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Pixels of each side; height and width if the input is not square.
    size: Side | tuple[Side, Side]
    #: The grey of the bars, 0 to 255.
    fill: int = Field(ge=0, le=255)
    channels: Literal["RGB", "BGR"]
    #: Multiplies the value of each pixel.
    scale: float = Field(gt=0, allow_inf_nan=False)

    @classmethod
    def load(cls, path: Path) -> Letterbox:
        """Read the file. Raises :class:`~sm.errors.StartError` if it is missing or wrong."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise StartError(f"{path} is missing") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = str(next(iter(first["loc"]), "the file"))
            raise StartError(f"{path}: {where}: {first['msg']}") from None

    @classmethod
    def of(cls, image: ImageInput, path: Path) -> Letterbox:
        """Read ``path``; without that file, letterbox as the reference system does.

        Raises :class:`~sm.errors.StartError` if the file is wrong or has another size than the model.
        """
        if not path.is_file():
            size = image.size(DEFAULT_SIDE)
            log.info(
                "%s is missing: pictures are letterboxed to %d by %d, RGB, divided by 255", path, *size[::-1]
            )
            return cls(size=size, fill=DEFAULT_FILL, channels="RGB", scale=1 / 255)
        letterbox = cls.load(path)
        if (image.height, image.width) not in {
            (height, width) for height in (-1, letterbox.height) for width in (-1, letterbox.width)
        }:
            raise StartError(
                f"{path} has the size {letterbox.height} by {letterbox.width}, but the model's input "
                f"{image.name!r} is {image.height} by {image.width}"
            )
        return letterbox

    @property
    def height(self) -> int:
        return self.size if isinstance(self.size, int) else self.size[0]

    @property
    def width(self) -> int:
        return self.size if isinstance(self.size, int) else self.size[1]

    def fit(self, width: int, height: int) -> Placement:
        """Place a picture in the middle, as large as fits, with its aspect ratio."""
        ratio = min(self.width / width, self.height / height)
        inner_width, inner_height = max(1, round(width * ratio)), max(1, round(height * ratio))
        left, top = (self.width - inner_width) // 2, (self.height - inner_height) // 2
        return Placement(left, top, inner_width, inner_height, width, height)

    def tensor(self, pixels: Pixels, placement: Placement | None = None) -> NDArray[np.float32]:
        """Turn RGB uint8 [height, width, 3] into float32 [3, height, width], letterboxed and scaled.

        Args:
            pixels: The picture; it may have been decoded at a smaller size than it was sent.
            placement: Of the picture as it was sent; None: it was decoded at its own size.
        """
        placement = placement or self.fit(pixels.shape[1], pixels.shape[0])
        resized = _resize(pixels, placement)
        tensor = np.empty((3, self.height, self.width), np.float32)
        inner = _add_bars(tensor, placement, np.float32(self.fill) * np.float32(self.scale))
        # Split the bytes into planes, then widen and scale in one pass: twice as fast as multiplying the
        # interleaved picture, ten times as fast as transpose, cast, divide.
        for target, plane in zip(self._in_picture_order(inner), cv2.split(resized), strict=True):
            np.multiply(plane, np.float32(self.scale), out=target)
        return tensor

    def unscaled(self, pixels: Pixels, placement: Placement | None = None) -> Pixels:
        """Return the same in uint8 and not scaled, for a model that scales in its graph."""
        placement = placement or self.fit(pixels.shape[1], pixels.shape[0])
        resized = _resize(pixels, placement)
        tensor = np.empty((3, self.height, self.width), np.uint8)
        cv2.split(resized, self._in_picture_order(_add_bars(tensor, placement, np.uint8(self.fill))))
        return tensor

    def _in_picture_order(self, planes: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the planes of the model's input in the order red, green, blue."""
        return list(planes if self.channels == "RGB" else planes[::-1])


def _resize(pixels: Pixels, placement: Placement) -> Pixels:
    """Resize bilinearly, as Ultralytics does; average below half the size, where bilinear skips pixels."""
    if pixels.shape[1] >= 2 * placement.width and pixels.shape[0] >= 2 * placement.height:
        return shrink(pixels, placement.width, placement.height)
    size = placement.width, placement.height
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR), np.uint8)


def _add_bars(tensor: NDArray[Any], placement: Placement, grey: np.generic) -> NDArray[Any]:
    """Fill the bars of ``tensor`` [3, height, width] with grey and return the view for the picture."""
    right, bottom = placement.left + placement.width, placement.top + placement.height
    tensor[:, : placement.top], tensor[:, bottom:] = grey, grey
    tensor[:, :, : placement.left], tensor[:, :, right:] = grey, grey
    return tensor[:, placement.top : bottom, placement.left : right]
