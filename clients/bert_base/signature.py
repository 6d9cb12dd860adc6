"""Find out which tensors of the served model are the ids, the attention and the scores of the words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.client import ModelMetadata, Tensors
from sm.client.tensor_roles import UnsuitableModel, find_output, format_tensors, record_shape

#: The outputs of a graph built with ``--masks``: the best words of each mask, their log probabilities.
MASK_OUTPUTS = ("word_ids", "word_scores")
#: The names that exporters give to one input. Only the ids are required.
Role = tuple[str, ...]
IDS: Role = ("input_ids",)
ATTENTION: Role = ("attention_mask", "input_mask")
TYPES: Role = ("token_type_ids", "segment_ids")
DTYPES: dict[str, type[np.signedinteger[Any]]] = {"INT64": np.int64, "INT32": np.int32}


@dataclass(frozen=True)
class Signature:
    """The inputs of a fill-mask model by their role, and the outputs to ask for."""

    #: The role of each input, by the input's name.
    inputs: Mapping[str, Role]
    dtype: type[np.signedinteger[Any]]
    #: :data:`MASK_OUTPUTS`, or the one output of logits.
    outputs: tuple[str, ...]
    #: Word pieces of every text if the model takes one length only; 0: any length.
    length: int
    #: 0: unknown.
    vocabulary_size: int

    @classmethod
    def of(cls, model: ModelMetadata) -> Signature:
        """Read the signature of a model.

        Raises:
            UnsuitableModel: It is not a model that fills masks.
        """
        roles = {name: role for role in (IDS, ATTENTION, TYPES) for name in role}
        inputs = {name: roles[name] for name in model.inputs if name in roles}
        shapes = {record_shape(model, model.inputs[name], 1) for name in inputs}
        datatypes = {model.inputs[name].datatype for name in inputs}
        if (
            IDS not in inputs.values()
            or len(inputs) < len(model.inputs)
            or None in shapes
            or len(datatypes) > 1
            or not datatypes <= DTYPES.keys()
        ):
            raise UnsuitableModel(
                f"{model.name!r} takes {format_tensors(model.inputs.values())}: input_ids, and at most "
                "attention_mask and token_type_ids, of one integer type are expected."
            )
        lengths = {shape[0] for shape in shapes if shape} - {-1}
        dtype = DTYPES[datatypes.pop()]
        length = max(lengths, default=0)
        if model.outputs.keys() >= set(MASK_OUTPUTS):
            return cls(inputs, dtype, MASK_OUTPUTS, length, vocabulary_size=0)
        logits = find_output(model, 2, ("logits", "output"))
        return cls(inputs, dtype, (logits.name,), length, vocabulary_size=max(0, logits.shape[1]))

    @property
    def gives_logits(self) -> bool:
        return self.outputs != MASK_OUTPUTS

    def to_tensors(self, ids: NDArray[np.int64], attention: NDArray[np.int64]) -> Tensors:
        """Return the model's inputs for one text: ``ids`` and ``attention`` [s], all of token type 0."""
        values = {IDS: ids, ATTENTION: attention, TYPES: np.zeros_like(ids)}
        return {name: values[role].astype(self.dtype, copy=False) for name, role in self.inputs.items()}
