"""A photograph to ResNet's input, as services usually do it: OpenCV with its defaults, or Pillow with its.

Both turn a picture upright as its EXIF says, which :mod:`bench.work` does not.
"""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageOps

from bench.work import MEAN, SHORT, SIDE, Array, Outputs, Resnet


class PhotoResnet(Resnet):
    """The short side to 256, the middle cut out, BGR minus the mean."""

    def preprocess(self, content: bytes) -> Outputs:
        resized = self.resized(content)
        top, left = (resized.shape[0] - SIDE) // 2, (resized.shape[1] - SIDE) // 2
        square = resized[top : top + SIDE, left : left + SIDE].astype(np.float32) - MEAN
        return {"input": np.ascontiguousarray(square.transpose(2, 0, 1)[None])}

    @abstractmethod
    def resized(self, content: bytes) -> Array:
        """BGR uint8 whose short side has :data:`SHORT` pixels."""


class OpenCvResnet(PhotoResnet):
    """``cv2.imdecode`` turns the picture upright; ``cv2.resize`` is bilinear and skips pixels."""

    def resized(self, content: bytes) -> Array:
        pixels = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
        return np.asarray(cv2.resize(pixels, short_side(pixels.shape[1], pixels.shape[0])))


class PillowResnet(PhotoResnet):
    """``Image.resize`` is bicubic and averages."""

    def resized(self, content: bytes) -> Array:
        picture = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
        return np.asarray(picture.resize(short_side(*picture.size)))[..., ::-1]


def short_side(width: int, height: int) -> tuple[int, int]:
    ratio = SHORT / min(width, height)
    return round(width * ratio), round(height * ratio)


STYLES: dict[str, Callable[[Path, str], Resnet]] = {"opencv": OpenCvResnet, "pillow": PillowResnet}
