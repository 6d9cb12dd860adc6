"""Objects of a class, and just which pixels are theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import cv2
import numpy as np
import pybase64
from numpy.typing import NDArray
from pydantic import Field

from sm.client import Array, Client, ImagePayload, Masks, Parameters, Picture, Tensors, resize

from .classes import Classes
from .drawing import Drawn, draw
from .rle import decode

#: Pixels of a picture's longer side that the models get to see: more would be lost on them.
SEEN = 1024


class Options(Parameters):
    classes: str | list[str] = Field(
        "", description="Which of COCO's classes: 'bus', 'a cat, a dog', or a list. All if there is none."
    )
    threshold: float = Field(0.5, ge=0, le=1, description="The score over which an object counts.")
    output: Literal["boxes", "rle", "png", "picture"] = Field(
        "boxes", description="Boxes alone, with masks as COCO's run lengths or PNGs, or the picture drawn on."
    )


class SegmentedPicture(ImagePayload):
    parameters: Options = Field(default_factory=Options)


class DetectSegment(Client):
    """The objects of some classes in a picture, at most 20, the surest first.

    ``boxes``: ``{"label", "score", "box": {"x1", "y1", "x2", "y2"}}`` in the picture's own pixels. ``rle``
    adds ``mask``, ``{"size": [height, width], "counts": "..."}`` as COCO and pycocotools have it, and
    ``quality``, how well the mask fits as its model reckons; with ``png`` the mask is a PNG of black and
    white. ``picture``, or ``Accept: image/png``: the picture with everything drawn.
    """

    payload = SegmentedPicture
    result = Masks(parameters={"output": "rle"})
    samples = ("collage.jpg",)
    #: The ensemble does it all; boxes alone are asked of its first model, which takes a tenth of the time.
    models = ("detect_segment", "detect")

    def setup(self) -> None:
        labels = self.repository / "detect" / "labels.txt"
        self.classes = Classes(labels.read_text(encoding="utf-8").splitlines())

    def inference(self, payload: SegmentedPicture) -> object:
        """Detect, and segment if masks are asked for."""
        options, (width, height) = payload.parameters, payload.size
        inputs: dict[str, Array] = {
            "image": smaller(payload),
            "classes": self.classes.ids(options.classes),
            "threshold": np.array([options.threshold], np.float32),
        }
        # A version is the ensemble's: one that is not there is a 404, also where the ensemble is not asked.
        self.triton.metadata("detect_segment", payload.version)
        drawn = options.output == "picture" or payload.accept == "image/png"
        if options.output == "boxes" and not drawn:
            return list(self.objects(self.triton.infer("detect", inputs), height, width))
        inputs["size"] = np.array([height, width], np.int32)
        outputs = self.triton.infer("detect_segment", inputs, version=payload.version)
        found = list(self.objects(outputs, height, width))
        if drawn:
            return picture(payload.pixels, found, outputs)
        for each, mask, quality in zip(found, codes(outputs), outputs["quality"], strict=True):
            each["quality"] = round(float(quality), 4)
            each["mask"] = {"size": [height, width], "counts": mask.decode("ascii")}
            if options.output == "png":
                each["mask"] = png(decode(mask, height, width))
        return found

    def objects(self, outputs: Tensors, height: int, width: int) -> Iterator[dict[str, Any]]:
        """``boxes`` [n, 4] as shares, ``scores`` and ``class_ids`` [n] to what a caller reads."""
        size = np.array([width, height, width, height])
        boxes = (outputs["boxes"] * size).round(1).tolist()
        for box, score, class_id in zip(boxes, outputs["scores"], outputs["class_ids"], strict=True):
            yield {
                "label": self.classes.labels[class_id],
                "score": round(float(score), 4),
                "box": dict(zip(("x1", "y1", "x2", "y2"), box, strict=True)),
            }


def smaller(payload: SegmentedPicture) -> NDArray[np.uint8]:
    """RGB uint8 [height, width, 3], made smaller if a side is over :data:`SEEN`, its shape kept."""
    width, height = payload.size
    ratio = SEEN / max(height, width)
    if ratio >= 1:
        return payload.pixels
    width, height = max(1, round(width * ratio)), max(1, round(height * ratio))
    return resize(payload.pixels_at_least(width, height), width, height)


def codes(outputs: Tensors) -> list[bytes]:
    """``rle`` [bytes of all masks] cut by ``lengths`` [n]."""
    ends = np.cumsum(outputs["lengths"])
    return [part.tobytes() for part in np.split(outputs["rle"], ends)[: len(ends)]]


def png(mask: NDArray[np.bool_]) -> dict[str, str]:
    """A mask [height, width] as a PNG with one channel, the object white."""
    done, encoded = cv2.imencode(".png", mask.astype(np.uint8) * np.uint8(255))
    assert done
    return {"image": pybase64.b64encode(encoded.tobytes()).decode(), "content_type": "image/png"}


def picture(pixels: NDArray[np.uint8], found: list[dict[str, Any]], outputs: Tensors) -> Picture:
    """The picture with all objects drawn, the surest on top."""
    objects = [
        Drawn(
            decode(mask, *pixels.shape[:2]),
            f"{each['label']} {each['score']:.2f}",
            (each["box"]["x1"], each["box"]["y1"]),
        )
        for each, mask in zip(found, codes(outputs), strict=True)
    ]
    return Picture(draw(pixels, objects[::-1]))
