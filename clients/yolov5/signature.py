"""Find out what the served YOLOv5 takes and gives; its graph may scale pixels and suppress boxes itself.

An export has one output of rows, whatever its name: four numbers of the box, objectness, and a score for each
class. A model that ``sm build-model --nms`` made has ``objects`` as well, or instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sm.client import ImageInput, ModelMetadata, UnsuitableModel, find_image, find_output
from sm.errors import StartError

#: The output with suppressed boxes.
OBJECTS = "objects"
#: Ultralytics' names for the output of rows.
ROW_OUTPUTS = ("output0", "output")
#: Numbers of a row before its classes: centre x and y, width, height, objectness.
BOX_NUMBERS = 5


class Thresholds(BaseModel):
    """The thresholds that a TensorRT plan was built with: ``suppression.json`` in the model's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    confidence: float = Field(ge=0, le=1)
    iou: float = Field(ge=0, le=1)


@dataclass(frozen=True)
class Signature:
    """The tensors of a YOLOv5 model."""

    image: ImageInput
    #: The output of rows; empty if the model has none.
    row_output: str
    #: Classes in a row; 0: unknown.
    classes: int
    #: The model has the output ``objects``.
    suppresses: bool
    #: The model has the inputs ``confidence`` and ``iou``.
    takes_thresholds: bool
    #: The thresholds that are built into the model; None if it takes them or does not suppress.
    built_in: Thresholds | None

    @classmethod
    def of(cls, model: ModelMetadata, folder: Path) -> Signature:
        """Read the signature of a model.

        Raises:
            UnsuitableModel: The model has neither rows nor objects, or takes something else than a picture.
        """
        image = find_image(model)
        suppresses, takes_thresholds = OBJECTS in model.outputs, "iou" in model.inputs
        unknown = set(model.inputs) - {image.name} - ({"confidence", "iou"} if takes_thresholds else set())
        if unknown:
            raise UnsuitableModel(f"{model.name!r} takes {', '.join(sorted(unknown))} beside the picture.")
        if image.layout != "CHW":
            raise UnsuitableModel(f"{model.name!r} takes {image.name} with its channels last.")
        only_objects = suppresses and len(model.outputs) == 1
        row_output, classes = ("", 0) if only_objects else _find_rows(model)
        built_in = None
        if suppresses and not takes_thresholds:
            built_in = _read_thresholds(folder / "suppression.json")
        return cls(image, row_output, classes, suppresses, takes_thresholds, built_in)

    def choose_output(self, confidence: float, iou: float) -> str:
        """Choose objects, or the rows if the built-in thresholds are not those of the request."""
        if self.built_in and (confidence < self.built_in.confidence or iou != self.built_in.iou):
            return self.row_output
        return OBJECTS if self.suppresses else self.row_output


def _find_rows(model: ModelMetadata) -> tuple[str, int]:
    """Return the name of the output of rows and the number of classes in a row."""
    output = find_output(model, 2, ROW_OUTPUTS)
    classes = output.shape[1] - BOX_NUMBERS
    if output.shape[1] >= 0 and classes < 1:
        raise UnsuitableModel(
            f"{model.name!r} gives {output.name} {list(output.shape)}: rows of at least {BOX_NUMBERS + 1} "
            "numbers are expected."
        )
    return output.name, max(0, classes)


def _read_thresholds(path: Path) -> Thresholds:
    try:
        return Thresholds.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise StartError(f"{path}, the thresholds in the plan, cannot be read: {error}") from None
