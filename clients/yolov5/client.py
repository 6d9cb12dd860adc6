"""Object detection with YOLOv5: a picture in, its objects out."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sm.client import Boxes, ImagePayload, Picture, TensorMetadata, Tensors, UnsuitableModel
from sm.client.described import read_lines
from sm.client.detection import (
    BOX_NUMBERS,
    ROW_OUTPUTS,
    Detector,
    Objects,
    Placement,
    detect_objects,
    read_objects,
)
from sm.client.images import Label, draw
from sm.client.tensor_roles import find_output, label_file
from sm.errors import StartError

#: The output with suppressed boxes, and the inputs that say how: ``sm build-model --nms`` makes them.
OBJECTS, THRESHOLDS = "objects", {"confidence", "iou"}
#: Numbers of a row before those of its classes: the box, and the objectness.
FIRST_CLASS = BOX_NUMBERS + 1


class Thresholds(BaseModel):
    """The thresholds that a TensorRT plan was built with: ``suppression.json`` in the model's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    confidence: float = Field(ge=0, le=1)
    iou: float = Field(ge=0, le=1)


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


class Yolov5(Detector):
    """COCO's 80 kinds of objects in a picture, best first.

    ``rows``: ``[class_id, confidence, x1, x2, y1, y2, image_width, image_height]``; note the order of the
    coordinates, which are in pixels of the letterboxed input, neither rounded nor
    clipped. With the picture's width and height a caller
    can map the box back. ``detections``: ``{"label", "class_id", "score", "box"}``, the box in the
    picture's own pixels. ``image``, or ``Accept: image/png``: the picture with the boxes drawn.

    Serves any model that takes one picture and has one output of rows, whatever their names, ``objects`` as
    well, or instead.
    """

    model = "yolov5"
    aliases = ("yolov5s",)
    payload = DetectionPayload
    result = Boxes(parameters={"format": "detections"})
    samples = ("collage.jpg", "chelsea.jpg")

    def setup(self) -> None:
        super().setup()
        inputs = self.metadata.inputs.keys() - {self.image.name}
        if inputs - THRESHOLDS:
            raise UnsuitableModel(f"{self.model!r} takes {', '.join(sorted(inputs))} beside the picture.")
        self.suppresses, self.takes_thresholds = OBJECTS in self.metadata.outputs, bool(inputs)
        #: Of a plan; None if the model takes them or does not suppress.
        self.built_in: Thresholds | None = None
        if self.suppresses and not self.takes_thresholds:
            path = self.home / "suppression.json"
            try:
                self.built_in = Thresholds.model_validate_json(path.read_text("utf-8-sig"))
            except (OSError, ValidationError) as error:
                raise StartError(f"{path}, the thresholds in the plan, cannot be read: {error}") from None

    def find_output(self) -> TensorMetadata:
        output = find_output(self.metadata, 2, ROW_OUTPUTS)
        extra, file = self.masks(output.name), label_file(self.home, output.name)
        count = len(read_lines(file)) if file else 0
        #: True for [n, numbers of a row], False for the other way round.
        self.has_rows = has_rows(output.shape, count + FIRST_CLASS + extra if count else 0)
        #: Numbers of a row that are read; None: all.
        self.numbers = max(output.shape[1 if self.has_rows else 0] - extra, 0) or None
        self.labels = self.read_labels(output, max((self.numbers or 0) - FIRST_CLASS, -1))
        if output.name != OBJECTS and 0 <= output.shape[1] <= FIRST_CLASS:
            raise UnsuitableModel(
                f"{self.model!r} gives {output.name} {list(output.shape)}: rows of at least "
                f"{FIRST_CLASS + 1} numbers are expected."
            )
        return output

    def read_labels(self, output: TensorMetadata, classes: int) -> tuple[str, ...]:
        """Read the names of the classes; ``classes``: how many there are, -1 if that is unknown.

        They are in ``labels.txt`` beside the model; without one, COCO's count if the model has as many.
        """
        own = self.home / "labels.txt"
        labels = read_lines(own if own.is_file() else self.folder / "coco.txt")
        fits = own.is_file() or output.name == OBJECTS or classes in (-1, len(labels))
        return labels if fits else ()

    def preprocess(self, payload: DetectionPayload) -> Tensors:
        options, inputs = payload.parameters, super().preprocess(payload)
        if not self.takes_thresholds:
            return inputs
        return {
            **inputs,
            "confidence": np.array([options.confidence], np.float32),
            "iou": np.array([options.iou], np.float32),
        }

    def wanted(self, payload: DetectionPayload) -> tuple[str, ...]:
        """Choose the objects, or the rows if the built-in thresholds are not those of the request."""
        options, built_in = payload.parameters, self.built_in
        if built_in and (options.confidence < built_in.confidence or options.iou != built_in.iou):
            return (self.output.name,)
        return (OBJECTS if self.suppresses else self.output.name,)

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
        if OBJECTS in outputs:
            return read_objects(outputs[OBJECTS], payload.parameters.confidence)
        rows = outputs[self.output.name]
        rows = rows.reshape(rows.shape[-2:])
        rows = (rows if self.has_rows else rows.T)[:, : self.numbers]
        return detect_objects(rows, payload.parameters.confidence, payload.parameters.iou)

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


def has_rows(shape: tuple[int, ...], numbers: int) -> bool:
    """Return which dimension of an output is that of the boxes: True for the first.

    Args:
        shape: Of one record; -1: any size.
        numbers: Of a row, as the labels say; 0: unknown.
    """
    first, last = shape
    if numbers in (first, last):
        return numbers == last
    return not last > first >= 0
