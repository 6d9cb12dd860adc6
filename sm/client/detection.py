"""Find objects in a letterboxed picture: its place in the model's input, boxes, and their suppression."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from sm.client.base import Tensors
from sm.client.described import DescribedClient, check_size
from sm.client.images import shrink
from sm.client.payloads import read_description
from sm.client.tensor_roles import ImageInput, UnsuitableModel, find_image

log = logging.getLogger(__name__)

#: Ultralytics' names for the output of rows.
ROW_OUTPUTS = ("output0", "output")
#: Numbers of a row before its classes: centre x and y, width, height.
BOX_NUMBERS = 4
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

    def to_picture(
        self, boxes: NDArray[np.floating[Any]], is_clipped: bool = True
    ) -> NDArray[np.floating[Any]]:
        """Map boxes [n, 4] (x1, y1, x2, y2) from the input's pixels to the picture's, clipped to it."""
        size = np.array(self.picture_size * 2)
        # One ratio for each axis: rounding to whole pixels may stretch a narrow picture.
        ratio = size / np.array((self.width, self.height) * 2)
        mapped: NDArray[np.floating[Any]] = (boxes - np.array((self.left, self.top) * 2)) * ratio
        return np.clip(mapped, 0, size) if is_clipped else mapped


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
        check_size(letterbox.height, letterbox.width, image, path)
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


def read_objects(rows: Floats, confidence: float, has_corners: bool = True) -> Objects:
    """Read the rows [n, 6] (box, score, class) of a model that chooses its boxes itself.

    A box is its corners (x1, y1, x2, y2), or its centre x and y, width and height.
    """
    rows = rows[rows[:, 4] > confidence]
    boxes = rows[:, :4] if has_corners else to_corners(rows[:, :4])
    return Objects(boxes, rows[:, 4], rows[:, 5].astype(np.intp))


def to_corners(boxes: Floats) -> Floats:
    """Turn centre x and y, width and height [n, 4] into corners (x1, y1, x2, y2)."""
    centre, half = boxes[:, :2], boxes[:, 2:4] / 2
    return np.concatenate([centre - half, centre + half], axis=1)


def select_candidates(rows: Floats, confidence: float) -> Objects:
    """Select the rows with a score over ``confidence``, in their order."""
    possible = np.flatnonzero(rows[:, 4] > confidence)  # a score is at most the objectness
    if len(possible) < len(rows):
        rows = rows[possible]
    classes = rows[:, 5:].argmax(axis=1)
    scores = rows[:, 4] * np.take_along_axis(rows, classes[:, None] + 5, axis=1)[:, 0]
    selected = scores > confidence
    return Objects(to_corners(rows[selected, :4]), scores[selected], classes[selected])


class Detector(DescribedClient):
    """A client whose model finds objects in a letterboxed picture."""

    def setup(self) -> None:
        super().setup()
        self.image = find_image(self.metadata)
        self.read_letterbox(self.home / "preprocess.json")

    def read_letterbox(self, description: Path) -> None:
        """Read how a picture becomes the model's input. Raises :class:`~sm.errors.StartError`."""
        if self.image.layout != "CHW":
            raise UnsuitableModel(f"{self.model!r} takes {self.image.name} with its channels last.")
        self.letterbox = Letterbox.of(self.image, description)

    def place(self, payload: Any) -> Placement:
        """Return where the picture is in the model's input."""
        return self.letterbox.fit(*payload.size)

    def preprocess(self, payload: Any) -> Tensors:
        placement = self.place(payload)
        pixels = payload.pixels_at_least(placement.width, placement.height)
        is_bytes = self.image.datatype == "UINT8"
        fit = self.letterbox.unscaled if is_bytes else self.letterbox.tensor
        return {self.image.name: fit(pixels, placement)}

    def masks(self, rows: str) -> int:
        """Return how many numbers of a row choose a mask: as many as the model gives masks to mix."""
        outputs = self.metadata.outputs
        rank = len(outputs[rows].shape) + 1  # both have the batch in their shape, or neither has
        return max((each.shape[-3] for each in outputs.values() if len(each.shape) == rank), default=0)

    def to_detections(
        self, objects: Objects, placement: Placement, is_clipped: bool = True
    ) -> list[dict[str, Any]]:
        """Return the objects with their names and their boxes in the picture's pixels."""
        # Ultralytics clips, the image processors of transformers do not.
        boxes = placement.to_picture(objects.boxes, is_clipped).round(2).tolist()
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
