"""What the served model takes and gives: it may scale pixels, and suppress boxes, in its own graph.

An export has one output of rows, whatever its name: four numbers of the box, one for any object, one for each
class. A model that ``sm build-model`` made may give ``objects`` too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sm.client import ImageInput, ModelMetadata, UnsuitableModel, find_image, find_output
from sm.errors import StartError

OBJECTS = "objects"
#: What Ultralytics calls the rows.
ROW_OUTPUTS = ("output0", "output")
#: Of a row, before the classes.
BOX_NUMBERS = 5


class Suppression(BaseModel):
    """The thresholds that are in a plan: ``suppression.json`` in the model's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    confidence: float = Field(ge=0, le=1)
    iou: float = Field(ge=0, le=1)


@dataclass(frozen=True)
class Form:
    """``image``: its input. ``suppresses``: it can give objects instead of rows."""

    image: ImageInput
    #: The output of rows; empty where it gives objects alone.
    rows: str
    #: How many classes a row has; 0 where that is not known.
    classes: int
    suppresses: bool
    #: It takes the thresholds of a request.
    asks: bool
    #: The thresholds it has where it takes none.
    fixed: Suppression | None

    @classmethod
    def of(cls, model: ModelMetadata, folder: Path) -> Form:
        """:class:`~sm.client.tensor_roles.UnsuitableModel` if it gives neither rows nor objects."""
        image = find_image(model)
        suppresses, asks = OBJECTS in model.outputs, "iou" in model.inputs
        others = set(model.inputs) - {image.name} - ({"confidence", "iou"} if asks else set())
        if others:
            raise UnsuitableModel(f"{model.name!r} takes {', '.join(sorted(others))} beside the picture.")
        if image.layout != "CHW":
            raise UnsuitableModel(f"{model.name!r} takes {image.name} with its channels last.")
        rows, classes = ("", 0) if suppresses and not _has_rows(model) else _rows(model)
        fixed = _suppression(folder / "suppression.json") if suppresses and not asks else None
        return cls(image, rows, classes, suppresses, asks, fixed)

    @property
    def unscaled(self) -> bool:
        """Whether it takes pixels as they are."""
        return self.image.datatype == "UINT8"

    def output(self, confidence: float, iou: float) -> str:
        """What to ask for with these thresholds: objects where the model can find just those."""
        if self.fixed and (confidence < self.fixed.confidence or iou != self.fixed.iou):
            return self.rows
        return OBJECTS if self.suppresses else self.rows


def _has_rows(model: ModelMetadata) -> bool:
    return any(name != OBJECTS for name in model.outputs)


def _rows(model: ModelMetadata) -> tuple[str, int]:
    """The output's name, and the number of classes."""
    output = find_output(model, 2, ROW_OUTPUTS)
    classes = output.shape[1] - BOX_NUMBERS
    if output.shape[1] >= 0 and classes < 1:
        raise UnsuitableModel(
            f"{model.name!r} gives {output.name} {list(output.shape)}: rows of at least {BOX_NUMBERS + 1} "
            "numbers are expected."
        )
    return output.name, max(0, classes)


def _suppression(path: Path) -> Suppression:
    try:
        return Suppression.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise StartError(f"{path}, the thresholds in the plan, cannot be read: {error}") from None
