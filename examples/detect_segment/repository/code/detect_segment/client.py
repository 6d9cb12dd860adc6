"""Object detection and segmentation: boxes and masks of the classes that a caller names."""

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
from .drawing import DrawnObject, draw
from .rle import decode

#: Pixels of the longer side of the picture that the models get; they scale larger pictures down anyway.
MAX_SIDE = 1024


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
    """The objects of some classes in a picture, at most 20, best first.

    ``boxes``: ``{"label", "score", "box": {"x1", "y1", "x2", "y2"}}`` in the picture's own pixels. ``rle``
    adds ``mask``, ``{"size": [height, width], "counts": "..."}`` as COCO and pycocotools have it, and
    ``quality``, the model's own estimate of how well the mask fits; with ``png`` the mask is a black and
    white PNG. ``picture``, or ``Accept: image/png``: the picture with everything drawn.
    """

    payload = SegmentedPicture
    result = Masks(parameters={"output": "rle"})
    samples = ("collage.jpg",)
    #: The ensemble, and its first model: that one gives boxes alone, in a tenth of the time.
    models = ("detect_segment", "detect")

    def setup(self) -> None:
        labels = self.repository / "detect" / "labels.txt"
        self.classes = Classes(labels.read_text(encoding="utf-8").splitlines())

    def inference(self, payload: SegmentedPicture) -> object:
        """Detect objects, and segment them if the answer has masks."""
        options, (width, height) = payload.parameters, payload.size
        inputs: dict[str, Array] = {
            "image": shrink_picture(payload),
            "classes": self.classes.find_ids(options.classes),
            "threshold": np.array([options.threshold], np.float32),
        }
        # A request's version is the ensemble's: an unknown one is a 404, also if the ensemble is not called.
        self.triton.metadata("detect_segment", payload.version)
        draws = options.output == "picture" or payload.accept == "image/png"
        if options.output == "boxes" and not draws:
            return list(self.to_objects(self.triton.infer("detect", inputs), height, width))
        inputs["size"] = np.array([height, width], np.int32)
        outputs = self.triton.infer("detect_segment", inputs, version=payload.version)
        objects = list(self.to_objects(outputs, height, width))
        if draws:
            return draw_picture(payload.pixels, objects, outputs)
        for item, mask, quality in zip(objects, split_masks(outputs), outputs["quality"], strict=True):
            item["quality"] = round(float(quality), 4)
            item["mask"] = {"size": [height, width], "counts": mask.decode("ascii")}
            if options.output == "png":
                item["mask"] = to_png(decode(mask, height, width))
        return objects

    def to_objects(self, outputs: Tensors, height: int, width: int) -> Iterator[dict[str, Any]]:
        """Turn ``boxes`` [n, 4] (shares of the picture), ``scores`` and ``class_ids`` [n] into an answer."""
        size = np.array([width, height, width, height])
        boxes = (outputs["boxes"] * size).round(1).tolist()
        for box, score, class_id in zip(boxes, outputs["scores"], outputs["class_ids"], strict=True):
            yield {
                "label": self.classes.labels[class_id],
                "score": round(float(score), 4),
                "box": dict(zip(("x1", "y1", "x2", "y2"), box, strict=True)),
            }


def shrink_picture(payload: SegmentedPicture) -> NDArray[np.uint8]:
    """Return RGB uint8 [height, width, 3], scaled down if a side is over :data:`MAX_SIDE`."""
    width, height = payload.size
    ratio = MAX_SIDE / max(height, width)
    if ratio >= 1:
        return payload.pixels
    width, height = max(1, round(width * ratio)), max(1, round(height * ratio))
    return resize(payload.pixels_at_least(width, height), width, height)


def split_masks(outputs: Tensors) -> list[bytes]:
    """Split ``rle``, the run lengths of all masks, by ``lengths`` [n]."""
    ends = np.cumsum(outputs["lengths"])
    return [part.tobytes() for part in np.split(outputs["rle"], ends)[: len(ends)]]


def to_png(mask: NDArray[np.bool_]) -> dict[str, str]:
    """Encode a mask [height, width] as a PNG with one channel; the object is white."""
    succeeded, encoded = cv2.imencode(".png", mask.astype(np.uint8) * np.uint8(255))
    assert succeeded
    return {"image": pybase64.b64encode(encoded.tobytes()).decode(), "content_type": "image/png"}


def draw_picture(pixels: NDArray[np.uint8], objects: list[dict[str, Any]], outputs: Tensors) -> Picture:
    """Draw all objects on the picture, the best one on top."""
    drawn_objects = [
        DrawnObject(
            decode(mask, *pixels.shape[:2]),
            f"{item['label']} {item['score']:.2f}",
            (item["box"]["x1"], item["box"]["y1"]),
        )
        for item, mask in zip(objects, split_masks(outputs), strict=True)
    ]
    return Picture(draw(pixels, drawn_objects[::-1]))
