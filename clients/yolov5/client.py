"""Object detection with YOLOv5: a picture in, its objects out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from sm.client import Boxes, ImagePayload, Picture, Tensors
from sm.client.images import Label, draw
from sm.client.tasks import ObjectDetection
from sm.client.tasks.detection import Letterbox, Objects, Placement, detect_objects, read_objects

from .signature import OBJECTS, Signature


class Options(BaseModel):
    """The thresholds, and the form of the answer."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    format: Literal["rows", "detections", "image"] = Field(
        "rows",
        description="rows: boxes in the pixels of the letterboxed input. detections: boxes in the picture's "
        "pixels. image: the picture with the boxes drawn.",
    )
    confidence: float = Field(0.5, ge=0, le=1, description="The score over which an object counts.")
    iou: float = Field(0.45, ge=0, le=1, description="Overlap over which two boxes of a class are one.")


class DetectionPayload(ImagePayload):
    """A picture to look for objects in."""

    parameters: Options = Field(default_factory=Options)


class Yolov5(ObjectDetection):
    """COCO's 80 kinds of objects in a picture, best first.

    ``rows``: ``[class_id, confidence, x1, x2, y1, y2, image_width, image_height]``; note the order of the
    coordinates, which are in pixels of the letterboxed input, neither rounded nor
    clipped. With the picture's width and height a caller
    can map the box back. ``detections``: ``{"label", "class_id", "score", "box"}``, the box in the
    picture's own pixels. ``image``, or ``Accept: image/png``: the picture with the boxes drawn.

    Serves any model that takes one picture and has one output of rows, whatever their names.
    """

    model = "yolov5"
    aliases = ("yolov5s",)
    payload = DetectionPayload
    result = Boxes(parameters={"format": "detections"})
    samples = ("collage.jpg", "chelsea.jpg")

    def setup(self) -> None:
        folder = self.repository / self.model
        self.signature = Signature.of(self.triton.metadata(self.model), folder)
        self.image = self.signature.image
        self.letterbox = Letterbox.of(self.image, folder / "preprocess.json")
        self.labels = tuple(self.read_labels(folder))

    def read_labels(self, folder: Path) -> list[str]:
        """Read ``labels.txt`` beside the model; without one, use COCO's if the model has as many classes."""
        labels_file, coco = folder / "labels.txt", self.folder / "coco.txt"
        if labels_file.is_file():
            return labels_file.read_text(encoding="utf-8").splitlines()
        labels = coco.read_text(encoding="utf-8").splitlines()
        return labels if self.signature.classes in (0, len(labels)) else []

    def preprocess(self, payload: DetectionPayload) -> Tensors:
        options, inputs = payload.parameters, super().preprocess(payload)
        if not self.signature.takes_thresholds:
            return inputs
        return {
            **inputs,
            "confidence": np.array([options.confidence], np.float32),
            "iou": np.array([options.iou], np.float32),
        }

    def wanted(self, payload: DetectionPayload) -> tuple[str, ...]:
        return (self.signature.choose_output(payload.parameters.confidence, payload.parameters.iou),)

    def postprocess(self, outputs: Tensors, payload: DetectionPayload) -> object:
        options, objects = payload.parameters, self.find_objects(outputs, payload)
        placement = self.letterbox.fit(*payload.size)
        if options.format == "image" or payload.accept == "image/png":
            return self.draw_picture(objects, placement, payload)
        if options.format == "detections":
            return self.to_detections(objects, placement)
        return self.to_rows(objects, placement)

    def find_objects(self, outputs: Tensors, payload: DetectionPayload) -> Objects:
        """Return what the graph suppressed, or suppress the rows."""
        options = payload.parameters
        if OBJECTS in outputs:
            return read_objects(outputs[OBJECTS], options.confidence)
        rows = outputs[self.signature.row_output]
        return detect_objects(rows.reshape(-1, rows.shape[-1]), options.confidence, options.iou)

    def to_rows(self, objects: Objects, placement: Placement) -> list[list[float]]:
        """Return every digit, and boxes that reach beyond the input, as the reference system does."""
        return [
            [class_id, score, x1, x2, y1, y2, *placement.picture_size]
            for class_id, score, (x1, y1, x2, y2) in zip(
                objects.classes.tolist(), objects.scores.tolist(), objects.boxes.tolist(), strict=True
            )
        ]

    def draw_picture(self, objects: Objects, placement: Placement, payload: DetectionPayload) -> Picture:
        labels = [
            Label(
                tuple(detection["box"].values()),
                f"{detection['label']} {detection['score']:.2f}",
                detection["class_id"],
            )
            for detection in self.to_detections(objects, placement)
        ]
        return Picture(draw(payload.pixels, reversed(labels)))  # the best object is drawn last, on top
