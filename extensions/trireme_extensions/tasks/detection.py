"""Object detection with YOLO or DETR: a picture in, its objects out."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, Field

from sm.client.base import Array, TensorMetadata, Tensors
from sm.client.described import read_lines
from sm.client.detection import (
    BOX_NUMBERS,
    MAX_OBJECTS,
    ROW_OUTPUTS,
    Detector,
    Objects,
    Placement,
    detect_objects,
    read_objects,
    select_candidates,
    to_corners,
)
from sm.client.payloads import ImagePayload, Parameters
from sm.client.results import Boxes
from sm.client.tensor_roles import UnsuitableModel, find_image, find_output, label_file
from sm.errors import ClientFailed, StartError
from trireme_extensions.tasks.picture_steps import read_for
from trireme_extensions.tasks.task_file import Task, TaskFile, probabilities, read_labels

log = logging.getLogger(__name__)

#: The outputs of DETR and its relatives: scores, and boxes as shares of the picture's sides.
DETR_OUTPUTS = ("logits", "pred_boxes")
#: DETR's input that says which pixels are not padding, and its types.
MASK_INPUT = "pixel_mask"
MASK_TYPES: dict[str, type[np.generic]] = {"BOOL": np.bool_, "FP32": np.float32, "INT32": np.int32}
#: Numbers of a row of a box that the graph has suppressed others for: x1, y1, x2, y2, score, class.
OBJECT_NUMBERS = 6
#: By how much a score may be above 1: a sigmoid in half precision may round.
SLACK = 1e-3
#: How many times as large as the input a box may be that goes beyond its edges.
MAX_SHARE = 4
#: Boxes of a place in a YOLO with anchors.
ANCHORS = 3
#: Pixels between two boxes of each level: the usual YOLOs, those for 1,280 pixels, for small objects, and
#: the tiny ones; the last is for inputs that are smaller than any of these takes.
LEVELS = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32), (4,))


HeadName = Literal["v5", "v8", "nms", "rtdetr", "rtdetr_classes"]


@dataclass(frozen=True)
class BoxColumns:
    """The meaning of a row's numbers, from its first to those of its classes."""

    #: How many numbers there are before those of the classes, or in all if ``is_final``.
    count: int
    #: True if the graph has chosen the boxes: score and class are columns.
    is_final: bool = False
    #: True for corners (x1, y1, x2, y2), False for centre x and y, width and height.
    has_corners: bool = False
    #: True for shares of the sides of the picture, which is stretched; False for the input's pixels.
    has_shares: bool = False


#: YOLOv5 has an objectness; RT-DETR's are those of Ultralytics 8.4 and of the versions before it.
HEADS: dict[HeadName, BoxColumns] = {
    "v5": BoxColumns(BOX_NUMBERS + 1),
    "v8": BoxColumns(BOX_NUMBERS),
    "nms": BoxColumns(OBJECT_NUMBERS, is_final=True, has_corners=True),
    "rtdetr": BoxColumns(OBJECT_NUMBERS, is_final=True, has_shares=True),
    "rtdetr_classes": BoxColumns(BOX_NUMBERS, has_shares=True),
}


class Head(TaskFile):
    """The meaning of the output's rows; ``auto`` reads it from the labels, the rows and the columns.

    ``v5``: [n, 5 + classes] with an objectness. ``v8``, also of later YOLOs: [4 + classes, n].
    ``nms``: [n, 6], suppressed in the graph. ``rtdetr`` and ``rtdetr_classes``: [n, 6] and
    [n, 4 + classes], with boxes as shares. Both dimensions may be the other way round. An export of
    Ultralytics says its head itself.
    """

    head: Literal["auto"] | HeadName = "auto"
    extra: int | None = Field(
        default=None,
        ge=0,
        description="Numbers of a row behind its classes, which are not read, such as keypoints. By default "
        "those of masks, which have an output of their own.",
    )


@dataclass(frozen=True)
class Layout:
    """How an output of YOLO is read."""

    head: HeadName
    #: True for [n, numbers of a row], False for the other way round.
    has_rows: bool

    @property
    def columns(self) -> BoxColumns:
        return HEADS[self.head]

    def sides(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return how many boxes there are, and the numbers of each; -1: any number."""
        return (shape[0], shape[1]) if self.has_rows else (shape[1], shape[0])

    def fits(self, shape: tuple[int, ...], labels: int, extra: int) -> bool:
        """True if an output may be read so; see :func:`find_layout`."""
        boxes, numbers = self.sides(shape)
        classes = numbers - self.columns.count - extra
        if self.columns.is_final:
            return classes == 0
        if labels:
            return classes == labels
        # Without labels there are more boxes than numbers of one; [-1, 85] is the older head's.
        return classes > 0 and (boxes > numbers or (boxes < 0 and self.head == "v5"))


#: The layouts that Ultralytics exports, and the same with rows and columns exchanged.
USUAL: tuple[Layout, ...] = (Layout("v5", True), Layout("v8", False), Layout("nms", True))
TURNED: tuple[Layout, ...] = (Layout("v8", True), Layout("v5", False))


def find_layout(shape: tuple[int, ...], labels: int, extra: int, image: tuple[int, int]) -> Layout:
    """Find how an output is read.

    Args:
        shape: Of one record; -1: any size.
        labels: The names of classes that the model has; 0: unknown.
        extra: Numbers of a row behind its classes.
        image: Height and width of the model's input; -1: any.

    Raises:
        UnsuitableModel: The output may be read in several ways, or in none.
    """
    # A turned head of v5 has the shape of boxes with an angle, so that one is not guessed.
    layouts: list[Layout] = [*USUAL, *(TURNED[:1] if labels else ())]
    fitting: list[Layout] = [each for each in layouts if each.fits(shape, labels, extra)]
    raw = box_counts(*image)
    if raw:
        # A graph that has suppressed boxes has at most as many rows as the input has places for boxes.
        by_count = [
            each
            for each in fitting
            if each.sides(shape)[0] < 0 or (each.sides(shape)[0] in raw) is not each.columns.is_final
        ]
        fitting = (
            by_count if len(fitting) > 1 else [each for each in fitting if each.columns.is_final] or by_count
        )
    if len(fitting) == 1:
        return fitting[0]
    names = f"{labels} labels" if labels else "no labels"
    problem = "may be read in several ways" if fitting else "is not one of YOLO's rows"
    raise UnsuitableModel(
        f"the output {list(shape)} with {names} {problem}: write its head ({', '.join(HEADS)}) into "
        "task.json, and as extra the numbers of a row behind its classes, such as keypoints. Turned boxes "
        "are not read."
    )


def turn(head: str, shape: tuple[int, ...], labels: int, extra: int) -> Layout:
    """Find which dimension of an output is that of the boxes, if its head is known."""
    own = [Layout(name, has_rows) for name in HEADS if name == head for has_rows in (True, False)]
    layouts = [each for each in (*USUAL, *TURNED) if each.head == head] or own
    by_labels = [each for each in layouts if labels and each.fits(shape, labels, extra)]
    by_size = [each for each in layouts if each.sides(shape)[0] > each.sides(shape)[1] >= 0]
    found: Layout = [*by_labels, *by_size, *layouts][0]
    return found


def box_counts(height: int, width: int) -> frozenset[int]:
    """Return how many boxes a YOLO gives for a picture, by its levels and anchors; none for a free size."""
    counts: set[int] = set()
    for strides in LEVELS if height > 0 and width > 0 else ():
        if height % strides[-1] or width % strides[-1] or (counts and len(strides) == 1):
            continue
        places = sum(height // stride * (width // stride) for stride in strides)
        counts |= {places, ANCHORS * places}
    return frozenset(counts)


class Thresholds(Parameters):
    """Which boxes are objects."""

    confidence: float = Field(
        0.25,
        ge=0,
        le=1,
        validation_alias=AliasChoices("confidence", "threshold"),
        description="The score over which an object counts.",
    )
    iou: float = Field(0.45, ge=0, le=1, description="Overlap over which two boxes of a class are one.")


class DetectedImage(ImagePayload):
    """A picture to look for objects in."""

    parameters: Thresholds = Field(default_factory=Thresholds)


class ObjectDetection(Detector, Task):
    """``[{"label", "class_id", "score", "box": {"x1", "y1", "x2", "y2"}}]``, best first.

    A box is in the pixels of the caller's picture.

    Serves a model that takes one picture and has one output of YOLO's rows, whatever their names,
    or DETR's ``logits`` and ``pred_boxes``.
    """

    options = Head
    payload: ClassVar[type[ImagePayload]] = DetectedImage
    result = Boxes()

    def read_letterbox(self, description: Path) -> None:
        if self.head != "detr":
            super().read_letterbox(description)
            return
        self.preprocessing = read_for(self.image, description, self.model)
        if not self.preprocessing.keeps_whole:
            raise StartError(f"{description} crops; the boxes are of the whole picture.")

    def find_output(self) -> TensorMetadata:
        #: One of those of :class:`Head`, or ``detr``.
        self.head: str = self.settings.head
        if set(DETR_OUTPUTS) <= self.metadata.outputs.keys():
            self.head = "detr"
            logits = find_output(self.metadata, 2, DETR_OUTPUTS)
            self.labels = self.read_labels(logits, -1)
            if logits.shape[1] - len(self.labels) not in (0, 1):  # DETR has one more, for no object
                raise StartError(
                    f"{self.model!r} has {len(self.labels)} labels for {logits.shape[1]} classes"
                )
            return logits
        rows = find_output(self.metadata, 2, ROW_OUTPUTS)
        extra = self.masks(rows.name) if self.settings.extra is None else self.settings.extra
        file, image = label_file(self.home, rows.name), find_image(self.metadata)
        count = len(read_lines(file)) if file else 0
        if self.head == "auto":
            self.layout = find_layout(rows.shape, count, extra, (image.height, image.width))
            self.head = self.layout.head
        else:
            self.layout = turn(self.head, rows.shape, count, extra)
        numbers = self.layout.sides(rows.shape)[1]
        #: Numbers of a row that are read; None: all.
        self.numbers = max(numbers - extra, 0) or None
        columns = self.layout.columns
        classes = -1 if columns.is_final else max((self.numbers or 0) - columns.count, -1)
        self.labels = self.read_labels(rows, classes)
        return rows

    def read_labels(self, output: TensorMetadata, classes: int) -> tuple[str, ...]:
        """Read the names of the classes; ``classes``: how many there are, -1 if that is unknown."""
        return read_labels(self.home, output.name, classes)

    def preprocess(self, payload: Any) -> Tensors:
        if self.head == "detr":
            decoded = payload.pixels_at_least(*self.preprocessing.decode_size)
            to_input = self.preprocessing.unscaled if self.image.datatype == "UINT8" else self.preprocessing
            tensors: dict[str, NDArray[Any]] = {self.image.name: to_input(decoded, payload.size)}
            mask = self.metadata.inputs.get(MASK_INPUT)
            if mask is not None:  # no pixel is padding
                shape = tensors[self.image.name].shape
                sides = shape[-2:] if self.image.layout == "CHW" else shape[:2]
                tensors[MASK_INPUT] = np.ones(sides, MASK_TYPES.get(mask.datatype, np.int64))
            return tensors
        return super().preprocess(payload)

    def wanted(self, payload: Any) -> tuple[str, ...]:  # noqa: ARG002  # the same for all
        return DETR_OUTPUTS if self.head == "detr" else (self.output.name,)

    def postprocess(self, outputs: Tensors, payload: Any) -> object:
        if self.head == "detr":
            whole = Placement(0, 0, 1, 1, payload.size)
            objects = read_detr(outputs["logits"], outputs["pred_boxes"], len(self.labels))
            return self.to_detections(objects[objects.scores > payload.parameters.confidence], whole, False)
        objects = self.find_objects(outputs, payload)
        self.check(objects)
        return self.to_detections(objects, self.place(payload))

    def place(self, payload: Any) -> Placement:
        """Return where the picture is in the model's input: letterboxed, or stretched as RT-DETR takes it."""
        if self.layout.columns.has_shares:
            return Placement(0, 0, self.letterbox.width, self.letterbox.height, payload.size)
        return super().place(payload)

    def check(self, objects: Objects) -> None:
        """Raise :class:`ClientFailed` for numbers that are not scores or boxes in pixels."""
        if not len(objects):
            return
        score, side = objects.scores.max(), (objects.boxes[:, 2:] - objects.boxes[:, :2]).max()
        # A box in pixels may go far beyond the input; one in shares is at most a few times as large.
        most = MAX_SHARE * max(self.letterbox.height, self.letterbox.width)
        if score > 1 + SLACK or side < 1 or (self.layout.columns.has_shares and side > most):
            raise ClientFailed(
                f"the rows of {self.model!r} are not those of the head {self.layout.head!r}: the best score "
                f"is {score:.4g}, and the largest side {side:.4g} pixels. Write its head "
                f"({', '.join(HEADS)}) into task.json."
            )

    def find_objects(self, outputs: Tensors, payload: Any) -> Objects:
        """Return the objects in the pixels of the model's input, best first."""
        options, rows = payload.parameters, outputs[self.output.name]
        rows = rows.reshape(rows.shape[-2:])
        rows, columns = (rows if self.layout.has_rows else rows.T)[:, : self.numbers], self.layout.columns
        if columns.has_shares:
            sides = self.letterbox.width, self.letterbox.height
            rows = np.hstack([rows[:, :BOX_NUMBERS] * np.array(sides * 2, np.float32), rows[:, BOX_NUMBERS:]])
        if columns.is_final:
            return read_objects(rows, options.confidence, columns.has_corners)
        if self.head != "v5":
            # Without an objectness, the class alone is the score.
            rows = np.insert(rows, BOX_NUMBERS, 1, axis=1)
        if columns.has_shares:  # a transformer finds an object once
            objects = select_candidates(rows, options.confidence)
            return objects[np.argsort(-objects.scores, kind="stable")[:MAX_OBJECTS]]
        return detect_objects(rows, options.confidence, options.iou)


def read_detr(logits: Array, boxes: Array, labels: int) -> Objects:
    """Return the objects of all queries, best first, with boxes from 0 to 1.

    With a class more than there are labels, the last one stands for no object, and the classes exclude each
    other, as in DETR. Else each pair of a query and a class counts by itself, the best as many as there are
    queries, as in RT-DETR (``post_process_object_detection`` of transformers 5.23's image processors).
    """
    has_nothing = logits.shape[-1] == labels + 1
    scores = probabilities(logits, "softmax" if has_nothing else "sigmoid")[:, :labels].astype(np.float32)
    if has_nothing:
        queries, classes = np.arange(len(scores)), scores.argmax(axis=1)
    else:
        best = np.argsort(-scores, axis=None, kind="stable")[: len(scores)]
        queries, classes = np.divmod(best, labels)
    objects = Objects(to_corners(boxes)[queries], scores[queries, classes], classes)
    return objects[np.argsort(-objects.scores, kind="stable")]
