"""Find a model's image input and its output by rank and type instead of by name.

Two exports of one network may differ in names, height and width, and in whether the batch dimension is
Triton's (``max_batch_size``) or part of the tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sm.client.base import ModelMetadata, TensorMetadata
from sm.errors import StartError
from sm.repository import models

#: Height, width and channels.
IMAGE_RANK = 3
CHANNELS = 3


class UnsuitableModel(StartError):
    """The model has no tensor of the kind that the client needs."""


@dataclass(frozen=True)
class ImageInput:
    """The input of a model that takes a picture."""

    name: str
    #: Triton's name of the type, such as ``FP32``.
    datatype: str
    #: In pixels; -1 if the model takes any height.
    height: int
    #: In pixels; -1 if the model takes any width.
    width: int
    #: ``CHW`` or ``HWC``.
    layout: str

    def size(self, usual: int) -> tuple[int, int]:
        """Choose the size to resize pictures to.

        Args:
            usual: Pixels to use for a side that the model leaves free.

        Returns:
            Height and width in pixels.
        """
        return usual if self.height < 0 else self.height, usual if self.width < 0 else self.width


def record_shape(model: ModelMetadata, tensor: TensorMetadata, rank: int) -> tuple[int, ...] | None:
    """Return the shape of one record if it has ``rank`` dimensions, else None.

    The tensor itself may have one dimension more, for the batch.
    """
    if len(tensor.shape) == rank:
        return tensor.shape
    if model.max_batch_size == 0 and len(tensor.shape) == rank + 1:
        return tensor.shape[1:]
    return None


def find_image(model: ModelMetadata, datatypes: Collection[str] = ("FP32", "UINT8")) -> ImageInput:
    """Find the input that takes a picture: three dimensions, one of which is 3 channels.

    Args:
        model: The model's description.
        datatypes: Triton's names of the types that the client can make.

    Returns:
        The input with its layout, height and width.

    Raises:
        UnsuitableModel: No input is a picture, or more than one is.
    """
    candidates = []
    for tensor in model.inputs.values():
        shape = record_shape(model, tensor, IMAGE_RANK)
        # Any size may be 3 channels.
        if not shape or tensor.datatype not in datatypes or not {CHANNELS, -1} & {shape[0], shape[-1]}:
            continue
        channels_last = shape[-1] == CHANNELS and shape[0] != CHANNELS
        height, width = shape[:2] if channels_last else shape[1:]
        layout = "HWC" if channels_last else "CHW"
        candidates.append(ImageInput(tensor.name, tensor.datatype, height, width, layout))
    if len(candidates) != 1:
        expected = f"one {' or '.join(datatypes)} picture (3 channels, height, width)"
        raise UnsuitableModel(
            f"{model.name!r} takes {format_tensors(model.inputs.values())}: {expected} is expected."
        )
    return candidates[0]


def find_output(
    model: ModelMetadata, rank: int, preferred: Sequence[str] = (), datatype: str = "FP32"
) -> TensorMetadata:
    """Find an output by its rank, and by its name if several have that rank.

    Args:
        model: The model's description.
        rank: Dimensions of the output for one record.
        preferred: Names of outputs, best first. The first of them that has the rank and type is chosen.
        datatype: Triton's name of the type.

    Returns:
        The output; its shape is that of one record, without the batch dimension.

    Raises:
        UnsuitableModel: No output fits, or several fit and none has a preferred name.
    """
    candidates: dict[str, TensorMetadata] = {}
    for tensor in model.outputs.values():
        shape = record_shape(model, tensor, rank)
        if shape is not None and tensor.datatype == datatype:
            candidates[tensor.name] = TensorMetadata(tensor.name, tensor.datatype, shape)
    preferred_output = next((candidates[name] for name in preferred if name in candidates), None)
    if preferred_output is not None:
        return preferred_output
    if len(candidates) != 1:
        expected = f"one {datatype} output of {rank} dimensions for each record"
        raise UnsuitableModel(
            f"{model.name!r} gives {format_tensors(model.outputs.values())}: {expected} is expected."
        )
    return next(iter(candidates.values()))


def label_file(model: Path, output: str) -> Path | None:
    """Find the file with an output's labels.

    Args:
        model: The model's folder in the repository.
        output: The output's name.

    Returns:
        The ``label_filename`` of the output in ``config.pbtxt``, else ``labels.txt`` if that exists, else
        None.
    """
    filename = ""
    with suppress(ValueError):  # Triton serves the model: its configuration is elsewhere or of a newer kind
        outputs = models.read_config(model / "config.pbtxt").output
        filename = next((each.label_filename for each in outputs if each.name == output), "")
    path = model / (filename or "labels.txt")
    return path if filename or path.is_file() else None


def format_tensors(tensors: Collection[TensorMetadata]) -> str:
    """Format names, types and shapes for an error message."""
    return (
        ", ".join(f"{tensor.name} {tensor.datatype} {list(tensor.shape)}" for tensor in tensors) or "nothing"
    )
