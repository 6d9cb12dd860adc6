"""What the served model takes and gives: it may scale pixels, and suppress boxes, in its own graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sm.base import ModelMetadata
from sm.errors import StartError

ROWS, OBJECTS = "output0", "objects"


class Suppression(BaseModel):
    """The thresholds that are in a plan: ``suppression.json`` in the model's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    confidence: float = Field(ge=0, le=1)
    iou: float = Field(ge=0, le=1)


@dataclass(frozen=True)
class Form:
    """``unscaled``: it takes pixels as they are. ``suppresses``: it can give objects instead of rows."""

    unscaled: bool
    suppresses: bool
    #: It takes the thresholds of a request.
    asks: bool
    #: The thresholds it has where it takes none.
    fixed: Suppression | None

    @classmethod
    def of(cls, model: ModelMetadata, folder: Path) -> Form:
        """:class:`~sm.errors.StartError` if it gives neither rows nor objects."""
        suppresses, asks = OBJECTS in model.outputs, "iou" in model.inputs
        if not (suppresses or ROWS in model.outputs):
            raise StartError(f"{model.name} gives {', '.join(model.outputs)}: neither {ROWS} nor {OBJECTS}.")
        fixed = _suppression(folder / "suppression.json") if suppresses and not asks else None
        return cls(model.inputs["images"].datatype == "UINT8", suppresses, asks, fixed)

    def output(self, confidence: float, iou: float) -> str:
        """What to ask for with these thresholds: objects where the model can find just those."""
        if self.fixed and (confidence < self.fixed.confidence or iou != self.fixed.iou):
            return ROWS
        return OBJECTS if self.suppresses else ROWS


def _suppression(path: Path) -> Suppression:
    try:
        return Suppression.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise StartError(f"{path}, the thresholds in the plan, cannot be read: {error}") from None
