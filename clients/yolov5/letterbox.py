"""A picture of any size into the model's input, and boxes back out of it."""

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

#: Pixels of each side where neither a file nor the model says it.
DEFAULT_SIDE = 640
#: The grey of the reference's bars, for a model without a description. Ultralytics' own is 114.
DEFAULT_FILL = 128


@dataclass(frozen=True)
class Placement:
    """Where in the input the picture lies: its corner and size there, and its own size."""

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
        """Boxes [n, 4] (x1, y1, x2, y2) from the input's pixels to the picture's own, clipped to it."""
        size = np.array(self.picture_size * 2)
        # By axis and not by one ratio, since rounding to whole pixels may stretch a narrow picture.
        ratio = size / np.array((self.width, self.height) * 2)
        mapped: Floats = (boxes - np.array((self.left, self.top) * 2)) * ratio
        return np.clip(mapped, 0, size)


class Letterbox(BaseModel):
    """What a model expects of its input: ``preprocess.json`` in the model's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Pixels of each side; for an input that is no square, height and width.
    size: Side | tuple[Side, Side]
    #: The grey of the bars, 0 to 255.
    fill: int = Field(ge=0, le=255)
    channels: Literal["RGB", "BGR"]
    #: What a pixel's value is multiplied by.
    scale: float = Field(gt=0, allow_inf_nan=False)

    @classmethod
    def load(cls, path: Path) -> Letterbox:
        """:class:`~sm.errors.StartError` if the description is missing or wrong."""
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
        """As ``path`` says, else as the reference system does for such an input.

        Raises :class:`~sm.errors.StartError` if the description is wrong or has another size.
        """
        if not path.is_file():
            size = image.size(DEFAULT_SIDE)
            log.info("%s is missing: pictures are letterboxed to %d by %d, RGB, by 255", path, *size[::-1])
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

    def place(self, width: int, height: int) -> Placement:
        """As large as fits with its shape kept, in the middle."""
        ratio = min(self.width / width, self.height / height)
        inner_width, inner_height = max(1, round(width * ratio)), max(1, round(height * ratio))
        left, top = (self.width - inner_width) // 2, (self.height - inner_height) // 2
        return Placement(left, top, inner_width, inner_height, width, height)

    def tensor(self, pixels: Pixels, place: Placement | None = None) -> NDArray[np.float32]:
        """RGB uint8 [height, width, 3] to float32 [3, height, width], resized to its place and scaled.

        ``place`` is that of the picture as it was sent, where ``pixels`` were decoded smaller.
        """
        place = place or self.place(pixels.shape[1], pixels.shape[0])
        resized = _resize(pixels, place)
        tensor = np.empty((3, self.height, self.width), np.float32)
        inner = _add_bars(tensor, place, np.float32(self.fill) * np.float32(self.scale))
        # Planes first, while they are bytes, then one pass that widens and scales: twice as fast as
        # multiplying the interleaved picture, ten times as fast as transpose, cast, divide.
        for target, plane in zip(self._ordered(inner), cv2.split(resized), strict=True):
            np.multiply(plane, np.float32(self.scale), out=target)
        return tensor

    def unscaled(self, pixels: Pixels, place: Placement | None = None) -> Pixels:
        """The same in uint8, its values as they are: for a model that has the scale in its graph."""
        place = place or self.place(pixels.shape[1], pixels.shape[0])
        resized = _resize(pixels, place)
        tensor = np.empty((3, self.height, self.width), np.uint8)
        cv2.split(resized, self._ordered(_add_bars(tensor, place, np.uint8(self.fill))))
        return tensor

    def _ordered(self, planes: NDArray[Any]) -> list[NDArray[Any]]:
        """The model's planes in the order of a picture's: red, green, blue."""
        return list(planes if self.channels == "RGB" else planes[::-1])


def _resize(pixels: Pixels, place: Placement) -> Pixels:
    """Bilinearly, as Ultralytics does it; averaged from a half on, where bilinear would skip pixels."""
    if pixels.shape[1] >= 2 * place.width and pixels.shape[0] >= 2 * place.height:
        return shrink(pixels, place.width, place.height)
    size = place.width, place.height
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR), np.uint8)


def _add_bars(tensor: NDArray[Any], place: Placement, grey: np.generic) -> NDArray[Any]:
    """``tensor`` [3, height, width] gets its grey bars; the view where the picture belongs."""
    right, bottom = place.left + place.width, place.top + place.height
    tensor[:, : place.top], tensor[:, bottom:] = grey, grey
    tensor[:, :, : place.left], tensor[:, :, right:] = grey, grey
    return tensor[:, place.top : bottom, place.left : right]
