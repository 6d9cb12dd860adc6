"""Object detection with YOLO or DETR: a picture in, its objects out."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from sm.client.base import Array, TensorClient, Tensors
from sm.client.payloads import ImagePayload, Parameters
from sm.client.preprocessing import Preprocessing
from sm.client.results import Boxes
from sm.client.tasks.letterbox import Letterbox, Placement
from sm.client.tasks.nms import Objects, detect_objects, read_objects
from sm.client.tasks.task_file import TaskFile, probabilities, read_labels
from sm.client.tensor_roles import UnsuitableModel, find_image, find_output
from sm.errors import StartError

#: Ultralytics' names for the output of rows.
ROW_OUTPUTS = ("output0", "output")
#: The outputs of DETR and its relatives: scores, and boxes as shares of the picture's sides.
DETR_OUTPUTS = ("logits", "pred_boxes")
#: Numbers of a row of a box that the graph has suppressed others for: x1, y1, x2, y2, score, class.
OBJECT_NUMBERS = 6
#: Numbers of a row before its classes: centre x and y, width, height.
BOX_NUMBERS = 4


class Head(TaskFile):
    """What the rows of the output are; ``auto`` reads it from their shape.

    ``v5``: [n, 5 + classes] with an objectness. ``v8``, also of later YOLOs: [4 + classes, n]. ``nms``:
    [n, 6], suppressed in the graph.
    """

    head: Literal["auto", "v5", "v8", "nms"] = "auto"


class Thresholds(Parameters):
    """Which boxes are objects."""

    confidence: float = Field(0.25, ge=0, le=1, description="The score over which an object counts.")
    iou: float = Field(0.45, ge=0, le=1, description="Overlap over which two boxes of a class are one.")


class DetectedImage(ImagePayload):
    """A picture to look for objects in."""

    parameters: Thresholds = Field(default_factory=Thresholds)


class ObjectDetection(TensorClient):
    """``[{"label", "class_id", "score", "box": {"x1", "y1", "x2", "y2"}}]``, best first.

    A box is in the pixels of the caller's picture.

    Serves a model that takes one picture and has one output of YOLO's rows, whatever their names,
    or DETR's ``logits`` and ``pred_boxes``.
    """

    payload: ClassVar[type[ImagePayload]] = DetectedImage
    result = Boxes()
    #: One of those of :class:`Head`, or ``detr``.
    head: str = "v5"

    def setup(self) -> None:
        folder, metadata = self.repository / self.model, self.triton.metadata(self.model)
        self.image = find_image(metadata)
        if set(DETR_OUTPUTS) <= metadata.outputs.keys():
            self.head = "detr"
            self.preprocessing = Preprocessing.read(folder / "preprocess.json")
            self.labels = read_labels(folder, DETR_OUTPUTS[0], -1)
            classes = find_output(metadata, 2, DETR_OUTPUTS).shape[1]
            if classes - len(self.labels) not in (0, 1):  # DETR has one more, for no object
                raise StartError(f"{self.model!r} has {len(self.labels)} labels for {classes} classes")
            return
        if self.image.layout != "CHW":
            raise UnsuitableModel(f"{self.model!r} takes {self.image.name} with its channels last.")
        rows = find_output(metadata, 2, ROW_OUTPUTS)
        self.letterbox = Letterbox.of(self.image, folder / "preprocess.json")
        self.output = rows.name
        head = Head.read(folder).head
        self.head = find_head(rows.shape) if head == "auto" else head
        counts = {"v5": rows.shape[1] - BOX_NUMBERS - 1, "v8": rows.shape[0] - BOX_NUMBERS}
        self.labels = read_labels(folder, rows.name, max(counts.get(self.head, -1), -1))

    def preprocess(self, payload: Any) -> Tensors:
        if self.head == "detr":
            decoded = payload.pixels_at_least(*self.preprocessing.decode_size)
            return {self.image.name: self.preprocessing(decoded, payload.size)}
        placement = self.letterbox.fit(*payload.size)
        pixels = payload.pixels_at_least(placement.width, placement.height)
        is_bytes = self.image.datatype == "UINT8"
        to_input = self.letterbox.unscaled if is_bytes else self.letterbox.tensor
        return {self.image.name: to_input(pixels, placement)}

    def wanted(self, payload: Any) -> tuple[str, ...]:  # noqa: ARG002  # the same for all
        return DETR_OUTPUTS if self.head == "detr" else (self.output,)

    def postprocess(self, outputs: Tensors, payload: Any) -> object:
        if self.head == "detr":
            whole = Placement(0, 0, 1, 1, *payload.size)
            objects = read_detr(outputs["logits"], outputs["pred_boxes"], len(self.labels))
            return self.to_detections(objects[objects.scores > payload.parameters.confidence], whole)
        return self.to_detections(self.find_objects(outputs, payload), self.letterbox.fit(*payload.size))

    def find_objects(self, outputs: Tensors, payload: Any) -> Objects:
        """Return the objects in the pixels of the model's input, best first."""
        options, rows = payload.parameters, outputs[self.output]
        rows = rows.reshape(rows.shape[-2:])
        if self.head == "nms":
            return read_objects(rows, options.confidence)
        if self.head == "v8":
            # Without an objectness, the class alone is the score.
            rows = np.insert(rows.T, BOX_NUMBERS, 1, axis=1)
        return detect_objects(rows, options.confidence, options.iou)

    def to_detections(self, objects: Objects, placement: Placement) -> list[dict[str, Any]]:
        """Return the objects with their names and their boxes in the picture's pixels."""
        boxes = placement.to_picture(objects.boxes).round(2).tolist()
        return [
            {
                "label": self.label(class_id),
                "class_id": class_id,
                "score": round(score, 4),
                "box": dict(zip(("x1", "y1", "x2", "y2"), box, strict=True)),
            }
            for class_id, score, box in zip(
                objects.classes.tolist(), objects.scores.tolist(), boxes, strict=True
            )
        ]

    def label(self, class_id: int) -> str:
        """Return the name of the class, or its number if the model has too few labels."""
        return self.labels[class_id] if class_id < len(self.labels) else str(class_id)


def read_detr(logits: Array, boxes: Array, labels: int) -> Objects:
    """Return the objects of all queries, best first, with boxes from 0 to 1.

    With a class more than there are labels, the last one stands for no object, and the classes exclude each
    other, as in DETR. Else each class counts by itself, as in RT-DETR.
    """
    has_nothing = logits.shape[-1] == labels + 1
    scores = probabilities(logits, "softmax" if has_nothing else "sigmoid")[:, :labels]
    classes, best = scores.argmax(axis=1), scores.max(axis=1)
    corners = np.hstack([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2])
    return Objects(corners, best.astype(np.float32), classes)[np.argsort(-best, kind="stable")]


def find_head(shape: tuple[int, ...]) -> Literal["v5", "v8", "nms"]:
    """Tell the heads apart by the shape of the rows: there are more boxes than numbers of one.

    Raises:
        UnsuitableModel: The shape is free, or too small for any head.
    """
    first, second = shape
    if second == OBJECT_NUMBERS:
        return "nms"
    if BOX_NUMBERS < first < second:
        return "v8"
    if second > BOX_NUMBERS + 1 and (first > second or first < 0):
        return "v5"
    raise UnsuitableModel(
        f"the output {list(shape)} is not one of YOLO's rows: write its head, v5, v8 or nms, into task.json"
    )
