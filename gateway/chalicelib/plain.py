"""The client for models without one: a picture or a tensor in, labels or tensors out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from sm.client import Array, Client, ModelMetadata, Parameters, Payload, TensorMetadata
from sm.client.payloads import NPY_MAGIC, Base64Bytes, array_of, read_npy
from sm.errors import WrongPayload
from sm.triton.tensors import STRINGS, dtype

from .model_files import read_labels

#: ImageNet's mean and deviation, with which most image classifiers are trained.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DEFAULT_SIDE = 224


class Options(Parameters):
    top: int = Field(default=5, ge=1, le=1000, description="How many labels to answer.")


class PlainPayload(Payload):
    """A picture or a tensor."""

    content_types = ("image/jpeg", "image/png", "image/webp", "application/x-npy")

    image: Base64Bytes | None = Field(default=None, description="A picture in base64.")
    tensor: Any = Field(default=None, description="Nested lists of numbers or strings.")
    parameters: Options = Field(default_factory=Options)

    @classmethod
    def fields_of_raw(cls, body: bytes) -> dict[str, Any]:
        if not body.startswith(NPY_MAGIC):
            return {"image": body}
        return {"tensor": read_npy(body)}


class PlainModel(Client):
    """Serves a model with one input; its labels and ``preprocess.json`` are in its folder."""

    payload = PlainPayload

    @classmethod
    def of(cls, model: str, triton: Any, repository: Path) -> PlainModel:
        plain_model = cls(triton, repository / model, repository)
        plain_model.name = model
        plain_model.labels = read_labels(plain_model.folder)
        return plain_model

    labels: list[str]

    def inference(self, payload: PlainPayload) -> object:
        metadata = self.triton.metadata(self.name, payload.version)
        model_input, explicit_batch = _without_batch(_sole_input(metadata), metadata.max_batch_size)
        if payload.image is not None:
            array = self.picture(payload.image, model_input)
        elif payload.tensor is not None:
            array = _cast(payload.tensor, model_input)
        else:
            raise WrongPayload("payload: needs an image or a tensor", field="payload")
        takes_batch = explicit_batch or metadata.max_batch_size > 0
        batched = takes_batch and array.ndim == len(model_input.shape)
        outputs = self.triton.infer(
            self.name, {model_input.name: array[None] if batched else array}, version=payload.version
        )
        arrays = {name: output[0] if batched else output for name, output in outputs.items()}
        return self.label_scores(arrays, payload.parameters.top) or {
            name: _to_json(output) for name, output in arrays.items()
        }

    def picture(self, content: bytes, model_input: TensorMetadata) -> Array:
        """Prepare the picture by ``preprocess.json``, else as ImageNet's classifiers do."""
        from sm.client.images import decode
        from sm.client.preprocessing import Preprocessing

        described = self.folder / "preprocess.json"
        if described.is_file():
            return Preprocessing.read(described)(decode(content))
        layout = _layout(model_input)
        side = model_input.shape[1] if model_input.shape[1] > 0 else DEFAULT_SIDE
        usual = Preprocessing(
            resize=round(side / 0.875), crop=side, channels="RGB", scale=1 / 255,
            mean=MEAN, std=DEVIATION, layout=layout,
        )  # fmt: skip
        return usual(decode(content))

    def label_scores(self, arrays: dict[str, Array], top: int) -> list[dict[str, object]]:
        """Return the most likely labels if the one output has a number for each label, else an empty list."""
        return best_labels(self.labels, next(iter(arrays.values())), top) if len(arrays) == 1 else []


def best_labels(labels: Sequence[str], output: Array, top: int) -> list[dict[str, object]]:
    """Return the ``top`` most likely labels, best first; none if there is not one number for each label."""
    vector = np.squeeze(output)
    if not labels or vector.shape != (len(labels),):
        return []
    best = np.argsort(-vector.astype(np.float64), kind="stable")[:top]
    return [{"label": labels[index], "index": int(index), "score": float(vector[index])} for index in best]


def _without_batch(model_input: TensorMetadata, max_batch_size: int) -> tuple[TensorMetadata, bool]:
    """Return the input of one record, and whether the model itself has a batch dimension."""
    if max_batch_size == 0 and len(model_input.shape) == 4 and model_input.shape[0] in (1, -1):
        return replace(model_input, shape=model_input.shape[1:]), True
    return model_input, False


def _sole_input(metadata: ModelMetadata) -> TensorMetadata:
    if len(metadata.inputs) != 1:
        raise WrongPayload(
            f"the model takes {', '.join(metadata.inputs)}: only a client can make several inputs",
            field="payload",
        )
    return next(iter(metadata.inputs.values()))


def _layout(model_input: TensorMetadata) -> Any:
    shape = model_input.shape
    if model_input.datatype == "FP32" and len(shape) == 3 and 3 in (shape[0], shape[2]):
        return "CHW" if shape[0] == 3 else "HWC"
    raise WrongPayload(
        f"payload.image: the model takes {model_input.datatype} {list(shape)}, no picture; send a tensor",
        field="payload.image",
    )


def _cast(tensor: Any, model_input: TensorMetadata) -> Array:
    try:
        if model_input.datatype == STRINGS:
            return np.asarray(tensor, dtype=np.object_)
        array = tensor if isinstance(tensor, np.ndarray) else array_of(tensor)
        return array.astype(dtype(model_input.datatype))
    except (ValueError, TypeError, OverflowError):
        raise WrongPayload(
            f"payload.tensor: is not a regular array of {model_input.datatype}", field="payload.tensor"
        ) from None


def _to_json(array: Array) -> object:
    if array.dtype != np.object_:
        return array
    return [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in array.ravel()]
