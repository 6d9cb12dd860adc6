"""Find out which inputs of a served model are the ids, the attention and the types of a text's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.client.base import ModelMetadata, Tensors
from sm.client.tensor_roles import UnsuitableModel, format_tensors, record_shape

#: The names that exporters give to one input. Only the ids are required.
Role = tuple[str, ...]
IDS: Role = ("input_ids",)
ATTENTION: Role = ("attention_mask", "input_mask")
TYPES: Role = ("token_type_ids", "segment_ids")
DTYPES: dict[str, type[np.signedinteger[Any]]] = {"INT64": np.int64, "INT32": np.int32}
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TextInputs:
    """The inputs of a model of texts by their role."""

    #: The role of each input, by the input's name.
    roles: Mapping[str, Role]
    dtype: type[np.signedinteger[Any]]
    #: Tokens of every text if the model takes one length only; 0: any length.
    length: int

    @classmethod
    def of(cls, model: ModelMetadata) -> TextInputs:
        """Read the inputs of a model.

        Raises:
            UnsuitableModel: It takes something else than a text's tokens.
        """
        known = {name: role for role in (IDS, ATTENTION, TYPES) for name in role}
        roles = {name: known[name] for name in model.inputs if name in known}
        shapes = {record_shape(model, model.inputs[name], 1) for name in roles}
        datatypes = {model.inputs[name].datatype for name in roles}
        if (
            IDS not in roles.values()
            or len(roles) < len(model.inputs)
            or None in shapes
            or len(datatypes) > 1
            or not datatypes <= DTYPES.keys()
        ):
            raise UnsuitableModel(
                f"{model.name!r} takes {format_tensors(model.inputs.values())}: input_ids, and at most "
                "attention_mask and token_type_ids, of one integer type are expected."
            )
        lengths = {shape[0] for shape in shapes if shape} - {-1}
        return cls(roles, DTYPES[datatypes.pop()], max(lengths, default=0))

    def to_tensors(self, ids: Ids, attention: Ids, types: Ids | None = None) -> Tensors:
        """Return the model's inputs; all arrays have the shape of ``ids``. ``types`` are 0 by default."""
        values = {IDS: ids, ATTENTION: attention, TYPES: np.zeros_like(ids) if types is None else types}
        return {name: values[role].astype(self.dtype, copy=False) for name, role in self.roles.items()}
