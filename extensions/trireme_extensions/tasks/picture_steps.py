"""Turn pixels into a model's input with the steps of transformers' image processors.

``preprocess.json`` with a ``resample`` describes them; :mod:`sm.client.preprocessing` reads the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import ConfigDict, Field

from sm.client.described import check_size
from sm.client.images import split
from sm.client.preprocessing import Normalisation, Preprocessing
from sm.client.tensor_roles import ImageInput
from sm.errors import StartError

Pixels = NDArray[np.uint8]
Side = Annotated[int, Field(ge=1, le=8192)]


class PictureSteps(Normalisation):
    """Cut a share out of the centre, resize, cut the centre, normalise: each step is optional."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    resample: Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
    #: Height and width.
    size: tuple[Side, Side] | None = None
    #: With ``size``: scale both sides alike, by whichever ratio changes the picture less.
    keep_ratio: bool = False
    shortest_edge: Side | None = None
    #: The longest edge that ``shortest_edge`` may lead to; the shortest one then becomes shorter.
    longest_edge: Side | None = None
    #: Height and width within which the picture is as large as fits.
    within: tuple[Side, Side] | None = None
    #: The sides become multiples of this.
    multiple: int = Field(default=1, ge=1)
    #: How they become multiples.
    rounding: Literal["nearest", "up", "down"] = "nearest"
    #: Height and width of the centre that is left at the end; a smaller picture gets black bars.
    crop: tuple[Side, Side] | None = None
    #: Before resizing: the height and width of the centre that is left, as shares of the shorter side.
    crop_share: tuple[float, float] | None = None
    channels: Literal["RGB", "BGR"] = "RGB"
    decode_margin: float = Field(default=2.0, ge=1)

    @property
    def decode_size(self) -> tuple[int, int]:
        """Width and height in pixels for :meth:`~sm.client.ImagePayload.pixels_at_least`."""
        sides = self.size or self.within or (self.shortest_edge, self.shortest_edge)
        height, width = (1 << 30 if side is None else math.ceil(self.decode_margin * side) for side in sides)
        return width, height

    @property
    def output_size(self) -> tuple[int, int] | None:
        """Height and width of every input; None if they depend on the picture."""
        if self.crop is not None:
            return self.crop
        return None if self.keep_ratio or self.size is None else self.resized(*self.size)

    @property
    def keeps_whole(self) -> bool:
        """True if the input shows the whole picture."""
        return self.crop is None and self.crop_share is None

    def __call__(self, pixels: Pixels, size: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """Return the input, float32 [3, height, width], or [height, width, 3] if ``layout`` is ``HWC``.

        Args:
            pixels: RGB uint8 [height, width, 3].
            size: Width and height of the original, if ``pixels`` may have been decoded at a smaller scale.
        """
        tensor = np.multiply(self._planes(pixels, size), self.factor[:, None, None], dtype=np.float32)
        tensor -= self.offset[:, None, None]
        return tensor if self.layout == "CHW" else np.ascontiguousarray(tensor.transpose(1, 2, 0))

    def unscaled(self, pixels: Pixels, size: tuple[int, int] | None = None) -> Pixels:
        """Return the same without normalising it, uint8, for a model whose graph does that."""
        planes = self._planes(pixels, size)
        return planes if self.layout == "CHW" else np.ascontiguousarray(planes.transpose(1, 2, 0))

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that a picture of this size gets, in whole pixels as transformers."""
        new = height, width
        if self.size is not None:
            new = self._scaled(height, width) if self.keep_ratio else self.size
        elif self.shortest_edge is not None and self.longest_edge is not None:
            new = _between(height, width, self.shortest_edge, self.longest_edge)
        elif self.shortest_edge is not None:
            new = _along(height, width, self.shortest_edge)
        elif self.within is not None:
            ratio = min(self.within[0] / height, self.within[1] / width)
            new = int(height * ratio), int(width * ratio)
        if self.multiple > 1 and not self.keep_ratio:
            new = self._rounded(new[0]), self._rounded(new[1])
        return max(1, new[0]), max(1, new[1])

    def _scaled(self, height: int, width: int) -> tuple[int, int]:
        assert self.size is not None
        down, across = self.size[0] / height, self.size[1] / width
        ratio = across if abs(1 - across) < abs(1 - down) else down
        return self._rounded(ratio * height), self._rounded(ratio * width)

    def _rounded(self, side: float) -> int:
        kinds: dict[str, Callable[[float], int]] = {"nearest": round, "up": math.ceil, "down": math.floor}
        return int(kinds[self.rounding](side / self.multiple)) * self.multiple

    def _planes(self, pixels: Pixels, size: tuple[int, int] | None) -> Pixels:
        """Return the channels in the model's order: uint8 [3, height, width]."""
        width, height = size or pixels.shape[1::-1]
        if self.crop_share is not None:
            pixels, (height, width) = self._share(pixels, height, width)
        new = self.resized(height, width)
        if new != pixels.shape[:2]:
            picture = Image.fromarray(np.ascontiguousarray(pixels))
            pixels = np.asarray(picture.resize((new[1], new[0]), Image.Resampling[self.resample.upper()]))
        if self.crop is not None:
            pixels = centre(pixels, *self.crop)
        planes = split(np.ascontiguousarray(pixels))
        return np.stack(planes if self.channels == "RGB" else planes[::-1])

    def _share(self, pixels: Pixels, height: int, width: int) -> tuple[Pixels, tuple[int, int]]:
        """Cut a share of the original's shorter side out of the centre, also of smaller pixels."""
        assert self.crop_share is not None
        cut = tuple(int(share * min(height, width)) for share in self.crop_share)
        scale = pixels.shape[0] / height
        own = (max(1, round(side * scale)) for side in cut) if scale != 1 else cut
        return centre(pixels, *own), (cut[0], cut[1])


def centre(pixels: Pixels, height: int, width: int) -> Pixels:
    """Cut the centre out of a picture; beyond its edges it is black."""
    rows, columns = pixels.shape[:2]
    if rows < height or columns < width:
        taller, wider = max(rows, height), max(columns, width)
        larger = np.zeros((taller, wider, 3), np.uint8)
        top, left = math.ceil((taller - rows) / 2), math.ceil((wider - columns) / 2)
        larger[top : top + rows, left : left + columns] = pixels
        # transformers moves the window with the picture, which is not the centre of an odd frame.
        top, left = (rows - height) // 2 + top, (columns - width) // 2 + left
        return larger[max(0, top) : top + height, max(0, left) : left + width]
    top, left = (rows - height) // 2, (columns - width) // 2
    return pixels[top : top + height, left : left + width]


def _along(height: int, width: int, shortest: int) -> tuple[int, int]:
    """Return the size whose shorter side has so many pixels."""
    if width <= height:
        return int(shortest * height / width), shortest
    return shortest, int(shortest * width / height)


def _between(height: int, width: int, shortest: int, longest: int) -> tuple[int, int]:
    """Return the size whose shorter side has so many pixels, or fewer if the longer one would be too long."""
    raw: float | None = None
    short, long = min(height, width), max(height, width)
    if long / short * shortest > longest:
        raw = longest * short / long
        shortest = round(raw)
    if short == shortest:
        return height, width
    scale = shortest if raw is None else raw
    if width < height:
        return int(scale * height / width), shortest
    return shortest, int(scale * width / height)


def read_preprocessing(path: Path) -> Preprocessing | PictureSteps:
    """Read a ``preprocess.json`` of either kind. Raises :class:`~sm.errors.StartError`."""
    try:
        is_steps = b'"resample"' in path.read_bytes()
    except OSError:
        is_steps = False  # the other kind says what is wrong
    return PictureSteps.read(path) if is_steps else Preprocessing.read(path)


def read_for(image: ImageInput, path: Path, model: str) -> Preprocessing | PictureSteps:
    """Read the file for a model's input.

    Raises:
        StartError: The file is missing or wrong, or makes inputs of another size than the model takes.
    """
    preprocessing = read_preprocessing(path)
    made = preprocessing.output_size
    if made is not None:
        check_size(*made, image, path)
    elif max(image.height, image.width) > 0:
        raise StartError(
            f"{path} makes inputs whose size depends on the picture, but {model!r} takes {image.height} by "
            f"{image.width}: export the model for any height and width, or write other steps into the file."
        )
    return preprocessing
