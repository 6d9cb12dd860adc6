"""What a graph in int8 cost in right answers: the part of a manifest, and what ``sm inspect`` says of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sm.repository.manifest import Manifest, Part
from sm.repository.model_makers import ModelMaker


class Quantized(Part):
    """The cost of int8 by a measure from 0 to 1, on inputs that the quantization saw and on others."""

    tool: str
    #: The measure: ``accuracy``, or how often the answers are those of fp32.
    measure: str
    #: The folder with the inputs; how many calibrated, how many the control judged, how many others count.
    data: str = ""
    calibrated: int
    controlled: int
    held_out: int
    before: float
    after: float
    held_out_before: float | None = None
    held_out_after: float | None = None
    #: The drop that was allowed.
    max_drop: float
    #: The layers that stayed in fp32.
    unquantized: tuple[str, ...] = ()

    def __str__(self) -> str:
        kept = f", {len(self.unquantized)} layers in fp32" if self.unquantized else ""
        if self.held_out_after is None or self.held_out_before is None:
            before, after, of = self.before, self.after, f"{self.controlled} inputs, none held out"
        else:
            before, after = self.held_out_before, self.held_out_after
            of = f"{self.held_out} held-out inputs"
        return f"int8: {self.measure} {before:.1%} -> {after:.1%} of {of}{kept}"


def describe(_version: Path, manifest: Manifest, _config: Mapping[str, Any]) -> str:
    """Return what int8 cost; empty for a model that is not in int8."""
    if manifest.quantized is None:
        return ""
    try:
        return str(Quantized.model_validate(manifest.quantized))
    except ValidationError:
        return "int8, whose cost cannot be read"


#: A row of the door ``sm.model_makers``.
ROW = ModelMaker(describe=describe)
