"""Objects in a picture, as YOLOv5 finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from sm.client import Boxes, ImagePayload, Picture, TensorClient, Tensors
from sm.client.drawing import Label, draw

from .form import OBJECTS, Form
from .letterbox import Letterbox, Placement
from .nms import Objects, objects, suppressed


class Options(BaseModel):
    """How sure, how far apart, and in which form."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    format: Literal["rows", "detections", "image"] = Field(
        "rows", description="Rows in the input's pixels, objects in the picture's, or the picture itself."
    )
    confidence: float = Field(0.5, ge=0, le=1, description="The score over which an object counts.")
    iou: float = Field(0.45, ge=0, le=1, description="Overlap over which two boxes of a class are one.")


class DetectionPayload(ImagePayload):
    """A picture to look for objects in."""

    parameters: Options = Field(default_factory=Options)


class Yolov5(TensorClient):
    """COCO's 80 kinds of objects in a picture.

    ``rows``: ``[class_id, confidence, x1, x2, y1, y2, image_width, image_height]``, mind the order. The
    box is in the pixels of the letterboxed input; width and height are the sent picture's, since with
    them a caller can map the box back. ``detections``: ``{"label", "class_id", "score", "box"}`` with
    the box in the picture's own pixels. ``image``, or ``Accept: image/png``: the picture, boxes drawn.
    Best first. The model is any with one picture and one output of rows, whatever their names.
    """

    model = "yolov5"
    aliases = ("yolov5s",)
    payload = DetectionPayload
    result = Boxes(parameters={"format": "detections"})
    samples = ("collage.jpg", "chelsea.jpg")

    def setup(self) -> None:
        folder = self.repository / self.model
        self.form = Form.of(self.triton.metadata(self.model), folder)
        self.letterbox = Letterbox.of(self.form.image, folder / "preprocess.json")
        self.labels = self.names(folder)

    def names(self, folder: Path) -> list[str]:
        """``labels.txt`` beside the model; else COCO's, if the model has as many classes."""
        labels_file, coco = folder / "labels.txt", self.folder / "coco.txt"
        if labels_file.is_file():
            return labels_file.read_text(encoding="utf-8").splitlines()
        names = coco.read_text(encoding="utf-8").splitlines()
        return names if self.form.classes in (0, len(names)) else []

    def preprocess(self, payload: DetectionPayload) -> Tensors:
        options, letterbox = payload.parameters, self.letterbox
        place = letterbox.place(*payload.size)
        pixels = payload.pixels_at_least(place.width, place.height)
        make = letterbox.unscaled if self.form.unscaled else letterbox.tensor
        images = make(pixels, place)
        if not self.form.asks:
            return {self.form.image.name: images}
        return {
            self.form.image.name: images,
            "confidence": np.array([options.confidence], np.float32),
            "iou": np.array([options.iou], np.float32),
        }

    def wanted(self, payload: DetectionPayload) -> tuple[str, ...]:
        return (self.form.output(payload.parameters.confidence, payload.parameters.iou),)

    def postprocess(self, outputs: Tensors, payload: DetectionPayload) -> object:
        options = payload.parameters
        if OBJECTS in outputs:
            detected = suppressed(outputs[OBJECTS], options.confidence)
        else:
            rows = outputs[self.form.rows]
            detected = objects(rows.reshape(-1, rows.shape[-1]), options.confidence, options.iou)
        place = self.letterbox.place(*payload.size)
        if options.format == "image" or payload.accept == "image/png":
            return self.picture(detected, place, payload)
        return (
            self.detections(detected, place) if options.format == "detections" else self.rows(detected, place)
        )

    def rows(self, detected: Objects, place: Placement) -> list[list[float]]:
        """Hundredths of a pixel and ten-thousandths of a score: more digits would say nothing."""
        corners = np.array((self.letterbox.width, self.letterbox.height) * 2)
        boxes = detected.boxes.clip(0, corners).tolist()
        return [
            [label, round(score, 4), *(round(value, 2) for value in (x1, x2, y1, y2)), *place.picture_size]
            for label, score, (x1, y1, x2, y2) in zip(
                detected.classes.tolist(), detected.scores.tolist(), boxes, strict=True
            )
        ]

    def detections(self, detected: Objects, place: Placement) -> list[dict[str, Any]]:
        boxes = place.to_picture(detected.boxes).round(2).tolist()
        return [
            {
                "label": self.label(class_id),
                "class_id": class_id,
                "score": round(score, 4),
                "box": dict(zip(("x1", "y1", "x2", "y2"), box, strict=True)),
            }
            for class_id, score, box in zip(
                detected.classes.tolist(), detected.scores.tolist(), boxes, strict=True
            )
        ]

    def picture(self, detected: Objects, place: Placement, payload: DetectionPayload) -> Picture:
        labels = [
            Label(tuple(row["box"].values()), f"{row['label']} {row['score']:.2f}", row["class_id"])
            for row in self.detections(detected, place)
        ]
        return Picture(draw(payload.pixels, reversed(labels)))

    def label(self, class_id: int) -> str:
        """The class's name, or its number where the model brought too few names."""
        return self.labels[class_id] if class_id < len(self.labels) else str(class_id)
