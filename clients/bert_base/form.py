"""Which of the served model's tensors are the ids, the attention and the words' scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.client import ModelMetadata, Tensors
from sm.client.tensor_roles import UnsuitableModel, find_output, format_tensors, record_shape

#: What the box's own model gives: the best words of its masks with their log probabilities.
MASKS = ("word_ids", "word_scores")
#: The names that exports give to the three inputs. The first is needed.
Names = tuple[str, ...]
IDS: Names = ("input_ids",)
ATTENTION: Names = ("attention_mask", "input_mask")
TYPES: Names = ("token_type_ids", "segment_ids")
DTYPES: dict[str, type[np.signedinteger[Any]]] = {"INT64": np.int64, "INT32": np.int32}


@dataclass(frozen=True)
class Form:
    """The inputs by what they mean; ``outputs`` are the two of :data:`MASKS`, or the one of logits."""

    inputs: Mapping[str, Names]
    dtype: type[np.signedinteger[Any]]
    outputs: tuple[str, ...]
    #: Word pieces of every text where the model takes no other length; 0: any length.
    length: int
    #: Words of the vocabulary; 0: not known.
    words: int

    @classmethod
    def of(cls, model: ModelMetadata) -> Form:
        """:class:`~sm.client.tensor_roles.UnsuitableModel` if it is no model that fills masks."""
        roles = {name: role for role in (IDS, ATTENTION, TYPES) for name in role}
        inputs = {name: roles[name] for name in model.inputs if name in roles}
        shapes = {record_shape(model, model.inputs[name], 1) for name in inputs}
        kinds = {model.inputs[name].datatype for name in inputs}
        if (
            IDS not in inputs.values()
            or len(inputs) < len(model.inputs)
            or None in shapes
            or len(kinds) > 1
            or not kinds <= DTYPES.keys()
        ):
            raise UnsuitableModel(
                f"{model.name!r} takes {format_tensors(model.inputs.values())}: input_ids, and at most "
                "attention_mask and token_type_ids, of one integer type are expected."
            )
        lengths = {shape[0] for shape in shapes if shape} - {-1}
        dtype = DTYPES[kinds.pop()]
        length = max(lengths, default=0)
        if model.outputs.keys() >= set(MASKS):
            return cls(inputs, dtype, MASKS, length, 0)
        logits = find_output(model, 2, ("logits", "output"))
        return cls(inputs, dtype, (logits.name,), length, max(0, logits.shape[1]))

    @property
    def gives_logits(self) -> bool:
        return self.outputs != MASKS

    def tensors(self, ids: NDArray[np.int64], attention: NDArray[np.int64]) -> Tensors:
        """The model's inputs for one text: ids and attention [s]."""
        values = {IDS: ids, ATTENTION: attention, TYPES: np.zeros_like(ids)}
        return {name: values[role].astype(self.dtype, copy=False) for name, role in self.inputs.items()}
