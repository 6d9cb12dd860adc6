"""ImageNet classification: a picture in, its most likely classes out."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from sm.client import (
    Classes,
    ImageInput,
    ImagePayload,
    Parameters,
    TensorMetadata,
    Tensors,
    find_output,
    label_file,
)
from sm.client.described import PictureClient, read_lines
from sm.errors import StartError

log = logging.getLogger(__name__)
#: A line that starts with its index, as in the reference's file: "250:malamute, malemute".
NUMBERED = re.compile(r"\d+:")
#: Pixels of a side that the model leaves free.
DEFAULT_SIDE = 224
#: Decode at least this many times the pixels of each side, so that the resize loses no detail.
DECODE_MARGIN = 2


class Options(Parameters):
    top: int = Field(default=3, ge=1, le=1000, description="How many classes to answer.")


class ClassifiedPicture(ImagePayload):
    parameters: Options = Field(default_factory=Options)


class Resnet(PictureClient):
    """Rows ``score:index:index:label``, best first, as the reference system prints them.

    The score is the logit (11.25), not a probability, because the reference prints logits. A caller who
    wants probabilities asks Triton's own API for the output ``probs``.

    Serves any model that takes one picture and has one output with a score for each class, whatever
    their names.
    """

    model = "resnet"
    payload = ClassifiedPicture
    result = Classes(row="{score}:{index}:{index}:{label}")
    samples = ("coffee.jpg", "cat.png")

    def find_output(self) -> TensorMetadata:
        """Find the scores, and read the labels from the model's folder: another ResNet brings its own."""
        output = find_output(self.metadata, 1, ("logits",))
        self.labels = read_labels(label_file(self.home, output.name), output.shape[0])
        return output

    def read_preprocessing(self, image: ImageInput) -> Any:
        """Read ``preprocess.json``; without one, prepare pictures as the reference system does."""
        if (self.home / "preprocess.json").is_file():
            return super().read_preprocessing(image)
        squash = Squash.of(image)
        log.info(
            "%s has no preprocess.json: pictures become %d by %d pixels, RGB, divided by 255",
            self.model,
            squash.width,
            squash.height,
        )
        return squash

    def postprocess(self, outputs: Tensors, payload: ClassifiedPicture) -> list[str]:
        """Turn the scores, float32 [classes], into rows."""
        scores = outputs[self.output.name].reshape(-1)
        best = np.argsort(-scores, kind="stable")[: payload.parameters.top].tolist()
        labels = self.labels
        # A class without a label is "score:index", as Triton prints it.
        return [
            f"{scores[index]:f}:{index}{f':{labels[index]}' if index < len(labels) else ''}" for index in best
        ]


def read_labels(path: Path | None, classes: int) -> tuple[str, ...]:
    """Read a file with one label per line, and return ``index:label`` for each class.

    The reference's numbered file has more labels than its model has classes; the rest is never used.

    Args:
        path: The label file; None: the model has none.
        classes: How many classes the model scores; -1: unknown.

    Raises:
        StartError: The file cannot be read, or has another number of labels than the model has classes.
    """
    if path is None:
        return ()
    names = read_lines(path)
    numbered = bool(names) and all(map(NUMBERED.match, names))
    if 0 <= classes != len(names) and not (numbered and len(names) > classes):
        raise StartError(f"{path} has {len(names)} labels for {classes} classes.")
    return names if numbered else tuple(f"{index}:{name}" for index, name in enumerate(names))


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
