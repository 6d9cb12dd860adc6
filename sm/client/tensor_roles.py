"""Find a model's image input and its output by rank and type instead of by name.

Two exports of one network differ in names, in height and width, and in whether the batch is a dimension of
Triton's (``max_batch_size``) or of the tensors themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm.client.base import ModelMetadata, TensorMetadata
from sm.errors import StartError
from sm.repository import config_files

#: Height, width and channels.
IMAGE_RANK = 3
CHANNELS = 3


class UnsuitableModel(StartError):
    """The model is of another kind than the client serves."""


@dataclass(frozen=True)
class ImageInput:
    """A model's picture: ``height`` and ``width`` are -1 where it takes any."""

    name: str
    datatype: str
    height: int
    width: int
    #: CHW or HWC.
    layout: str

    def size(self, usual: int) -> tuple[int, int]:
        """Height and width, ``usual`` where the model leaves one free."""
        return (
            usual if self.height < 0 else self.height,
            usual if self.width < 0 else self.width,
        )


def record_shape(model: ModelMetadata, tensor: TensorMetadata, rank: int) -> tuple[int, ...] | None:
    """The shape of one record, if it has ``rank`` dimensions; the tensor may have one more for the batch."""
    if len(tensor.shape) == rank:
        return tensor.shape
    if model.max_batch_size == 0 and len(tensor.shape) == rank + 1:
        return tensor.shape[1:]
    return None


def find_image(model: ModelMetadata, datatypes: Collection[str] = ("FP32", "UINT8")) -> ImageInput:
    """The one input that is a picture; :class:`UnsuitableModel` if there is none or more than one."""
    found = []
    for tensor in model.inputs.values():
        shape = record_shape(model, tensor, IMAGE_RANK)
        if shape and tensor.datatype in datatypes and CHANNELS in _possible_channels(shape):
            found.append(_image(tensor, shape))
    if len(found) != 1:
        wanted = f"one {' or '.join(datatypes)} picture (3 channels, height, width)"
        raise UnsuitableModel(f"{model.name!r} takes {shown(model.inputs.values())}: {wanted} is expected.")
    return found[0]


def find_output(
    model: ModelMetadata, rank: int, preferred: Sequence[str] = (), datatype: str = "FP32"
) -> TensorMetadata:
    """The first of ``preferred``, else the one output of ``rank``; its shape is one record's.

    Raises :class:`UnsuitableModel` if there is none or more than one.
    """
    found: dict[str, TensorMetadata] = {}
    for tensor in model.outputs.values():
        shape = record_shape(model, tensor, rank)
        if shape is not None and tensor.datatype == datatype:
            found[tensor.name] = TensorMetadata(tensor.name, tensor.datatype, shape)
    named = next((found[name] for name in preferred if name in found), None)
    if named is not None:
        return named
    if len(found) != 1:
        wanted = f"one {datatype} output of {rank} dimensions for each record"
        raise UnsuitableModel(f"{model.name!r} gives {shown(model.outputs.values())}: {wanted} is expected.")
    return next(iter(found.values()))


def label_file(model: Path, output: str) -> Path | None:
    """The labels of an output: its ``label_filename`` in ``config.pbtxt``, else a ``labels.txt``."""
    named = ""
    try:
        config = config_files.read(model / "config.pbtxt")
        named = next((each.label_filename for each in config.output if each.name == output), "")
    except ValueError:
        pass  # Triton serves the model, so its configuration is elsewhere or of a newer kind.
    path = model / (named or "labels.txt")
    return path if named or path.is_file() else None


def shown(tensors: Collection[TensorMetadata]) -> str:
    """Names, types and shapes, for an error."""
    return (
        ", ".join(f"{tensor.name} {tensor.datatype} {list(tensor.shape)}" for tensor in tensors) or "nothing"
    )


def _possible_channels(shape: tuple[int, ...]) -> set[int]:
    """The sizes of the first and the last dimension; a free one may be the channels."""
    return {CHANNELS if size < 0 else size for size in (shape[0], shape[-1])}


def _image(tensor: TensorMetadata, shape: tuple[int, ...]) -> ImageInput:
    last = shape[-1] == CHANNELS and shape[0] != CHANNELS
    height, width = shape[:2] if last else shape[1:]
    return ImageInput(tensor.name, tensor.datatype, height, width, "HWC" if last else "CHW")
