"""Object detection with YOLO or DETR: a picture in, its objects out."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from sm.client import ImageInput, shrink
from sm.client.base import Array, TensorMetadata, Tensors
from sm.client.payloads import ImagePayload, Parameters, read_description
from sm.client.preprocessing import Preprocessing
from sm.client.results import Boxes
from sm.client.tasks.task_file import Task, TaskFile, probabilities, read_labels
from sm.client.tensor_roles import UnsuitableModel, find_image, find_output
from sm.errors import StartError

log = logging.getLogger(__name__)

Pixels = NDArray[np.uint8]
Side = Annotated[int, Field(gt=0, le=8192)]

#: Pixels of a side if neither ``preprocess.json`` nor the model sets it.
DEFAULT_SIDE = 640
#: The grey of the bars without ``preprocess.json``: the reference's. Ultralytics uses 114.
DEFAULT_FILL = 128


@dataclass(frozen=True)
class Placement:
    """The position and size of a picture in the model's input, in pixels."""

    left: int
    top: int
    width: int
    height: int
    #: Width and height of the picture that was sent.
    picture_size: tuple[int, int]

    def to_picture(self, boxes: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Map boxes [n, 4] (x1, y1, x2, y2) from the input's pixels to the picture's, clipped to it."""
        size = np.array(self.picture_size * 2)
        # One ratio for each axis: rounding to whole pixels may stretch a narrow picture.
        ratio = size / np.array((self.width, self.height) * 2)
        mapped: NDArray[np.floating[Any]] = (boxes - np.array((self.left, self.top) * 2)) * ratio
        return np.clip(mapped, 0, size)


class Letterbox(BaseModel):
    """How a model wants its input, as ``preprocess.json`` in its folder says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Pixels of each side; height and width if the input is not square.
    size: Side | tuple[Side, Side]
    #: The grey of the bars, 0 to 255.
    fill: int = Field(ge=0, le=255)
    channels: Literal["RGB", "BGR"]
    #: Multiplies the value of each pixel.
    scale: float = Field(gt=0, allow_inf_nan=False)

    @classmethod
    def of(cls, image: ImageInput, path: Path) -> Letterbox:
        """Read ``path``; without that file, letterbox as the reference system does.

        Raises :class:`~sm.errors.StartError` if the file is wrong or has another size than the model.
        """
        if not path.is_file():
            size = image.size(DEFAULT_SIDE)
            log.info(
                "%s is missing: pictures are letterboxed to %d by %d, RGB, divided by 255", path, *size[::-1]
            )
            return cls(size=size, fill=DEFAULT_FILL, channels="RGB", scale=1 / 255)
        letterbox = read_description(cls, path)
        if (image.height, image.width) not in {
            (height, width) for height in (-1, letterbox.height) for width in (-1, letterbox.width)
        }:
            raise StartError(
                f"{path} has the size {letterbox.height} by {letterbox.width}, but the model's input "
                f"{image.name!r} is {image.height} by {image.width}"
            )
        return letterbox

    @property
    def height(self) -> int:
        return self.size if isinstance(self.size, int) else self.size[0]

    @property
    def width(self) -> int:
        return self.size if isinstance(self.size, int) else self.size[1]

    def fit(self, width: int, height: int) -> Placement:
        """Place a picture in the middle, as large as fits, with its aspect ratio."""
        ratio = min(self.width / width, self.height / height)
        inner_width, inner_height = max(1, round(width * ratio)), max(1, round(height * ratio))
        left, top = (self.width - inner_width) // 2, (self.height - inner_height) // 2
        return Placement(left, top, inner_width, inner_height, (width, height))

    def tensor(self, pixels: Pixels, placement: Placement | None = None) -> NDArray[np.float32]:
        """Turn RGB uint8 [height, width, 3] into float32 [3, height, width], letterboxed and scaled.

        Args:
            pixels: The picture; it may have been decoded at a smaller size than it was sent.
            placement: Of the picture as it was sent; None: it was decoded at its own size.
        """
        # Split the bytes into planes, then widen and scale in one pass: twice as fast as multiplying the
        # interleaved picture, ten times as fast as transpose, cast, divide.
        return np.multiply(self.unscaled(pixels, placement), np.float32(self.scale), dtype=np.float32)

    def unscaled(self, pixels: Pixels, placement: Placement | None = None) -> Pixels:
        """Return the same in uint8 and not scaled, for a model that scales in its graph."""
        placement = placement or self.fit(pixels.shape[1], pixels.shape[0])
        right, bottom = placement.left + placement.width, placement.top + placement.height
        tensor = np.empty((3, self.height, self.width), np.uint8)
        tensor[:, : placement.top], tensor[:, bottom:] = self.fill, self.fill
        tensor[:, :, : placement.left], tensor[:, :, right:] = self.fill, self.fill
        inner = tensor[:, placement.top : bottom, placement.left : right]
        cv2.split(_resize(pixels, placement), list(inner if self.channels == "RGB" else inner[::-1]))
        return tensor


def _resize(pixels: Pixels, placement: Placement) -> Pixels:
    """Resize bilinearly, as Ultralytics does; average below half the size, where bilinear skips pixels."""
    if pixels.shape[1] >= 2 * placement.width and pixels.shape[0] >= 2 * placement.height:
        return shrink(pixels, placement.width, placement.height)
    size = placement.width, placement.height
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR), np.uint8)


#: Candidates that are compared, the best by score. At a usual threshold a picture has some hundreds, and only
#: the worst of more are lost.
MAX_CANDIDATES = 2048
#: The most objects of an answer, as in the reference system.
MAX_OBJECTS = 1000

Floats = NDArray[np.float32]
Integers = NDArray[np.intp]


@dataclass(frozen=True)
class Objects:
    """Detected objects: ``boxes`` [n, 4] (x1, y1, x2, y2), ``scores`` [n], ``classes`` [n]."""

    boxes: Floats
    scores: Floats
    classes: Integers

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, which: Integers | NDArray[np.bool_]) -> Objects:
        return Objects(self.boxes[which], self.scores[which], self.classes[which])


def detect_objects(rows: Floats, confidence: float, iou: float) -> Objects:
    """Find the objects in rows [n, 5 + classes] (centre x, y, width, height, objectness, classes).

    A row's score is its objectness times its best class. Of two boxes of one class that overlap by more
    than ``iou`` the one with the better score stays. Equal scores keep the order of the rows.

    Returns:
        The objects, best first, at most :data:`MAX_OBJECTS`.
    """
    objects = select_candidates(rows, confidence)
    objects = objects[np.argsort(-objects.scores, kind="stable")[:MAX_CANDIDATES]]
    corners = objects.boxes.astype(np.float64)  # OpenCV tells classes apart by moving their boxes far away
    corners[:, 2:] -= corners[:, :2]
    # Every score is above the request's threshold already.
    kinds = objects.classes.astype(np.int32)
    stay = cv2.dnn.NMSBoxesBatched(corners, objects.scores, kinds, 0.0, iou)  # type: ignore[arg-type]
    return objects[np.array(stay[:MAX_OBJECTS], np.intp)]


def read_objects(rows: Floats, confidence: float) -> Objects:
    """Read the rows [n, 6] (x1, y1, x2, y2, score, class) of a model that suppresses boxes itself."""
    rows = rows[rows[:, 4] > confidence]
    return Objects(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.intp))


def select_candidates(rows: Floats, confidence: float) -> Objects:
    """Select the rows with a score over ``confidence``, in their order."""
    possible = np.flatnonzero(rows[:, 4] > confidence)  # a score is at most the objectness
    if len(possible) < len(rows):
        rows = rows[possible]
    classes = rows[:, 5:].argmax(axis=1)
    scores = rows[:, 4] * np.take_along_axis(rows, classes[:, None] + 5, axis=1)[:, 0]
    selected = scores > confidence
    centre, half = rows[selected, :2], rows[selected, 2:4] / 2
    boxes = np.concatenate([centre - half, centre + half], axis=1)
    return Objects(boxes, scores[selected], classes[selected])


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


class ObjectDetection(Task):
    """``[{"label", "class_id", "score", "box": {"x1", "y1", "x2", "y2"}}]``, best first.

    A box is in the pixels of the caller's picture.

    Serves a model that takes one picture and has one output of YOLO's rows, whatever their names,
    or DETR's ``logits`` and ``pred_boxes``.
    """

    options = Head
    payload: ClassVar[type[ImagePayload]] = DetectedImage
    result = Boxes()

    def setup(self) -> None:
        super().setup()
        self.image, description = find_image(self.metadata), self.home / "preprocess.json"
        if self.head == "detr":
            self.preprocessing = Preprocessing.read(description)
            return
        if self.image.layout != "CHW":
            raise UnsuitableModel(f"{self.model!r} takes {self.image.name} with its channels last.")
        self.letterbox = Letterbox.of(self.image, description)

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
        if self.head == "auto":
            self.head = find_head(rows.shape)
        counts = {"v5": rows.shape[1] - BOX_NUMBERS - 1, "v8": rows.shape[0] - BOX_NUMBERS}
        self.labels = self.read_labels(rows, max(counts.get(self.head, -1), -1))
        return rows

    def read_labels(self, output: TensorMetadata, classes: int) -> tuple[str, ...]:
        """Read the names of the classes; ``classes``: how many there are, -1 if that is unknown."""
        return read_labels(self.home, output.name, classes)

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
        return DETR_OUTPUTS if self.head == "detr" else (self.output.name,)

    def postprocess(self, outputs: Tensors, payload: Any) -> object:
        if self.head == "detr":
            whole = Placement(0, 0, 1, 1, payload.size)
            objects = read_detr(outputs["logits"], outputs["pred_boxes"], len(self.labels))
            return self.to_detections(objects[objects.scores > payload.parameters.confidence], whole)
        return self.to_detections(self.find_objects(outputs, payload), self.letterbox.fit(*payload.size))

    def find_objects(self, outputs: Tensors, payload: Any) -> Objects:
        """Return the objects in the pixels of the model's input, best first."""
        options, rows = payload.parameters, outputs[self.output.name]
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
