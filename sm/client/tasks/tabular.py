"""Tabular models: rows of numbers and words in, the model's outputs for each row out."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from sm.client.base import Array, TensorClient, TensorMetadata, Tensors
from sm.client.payloads import Payload
from sm.client.results import Table
from sm.client.tasks.task_file import TaskFile
from sm.client.tensor_roles import UnsuitableModel, record_shape
from sm.errors import BadInput, WrongPayload

DTYPES = {
    "FP32": np.float32,
    "FP64": np.float64,
    "INT64": np.int64,
    "INT32": np.int32,
    "BOOL": np.bool_,
    "BYTES": np.object_,
}


#: Rows of a request.
MAX_ROWS = 10_000
#: Characters of a number's text. NumPy gives every text of a column the size of the longest one.
MAX_NUMBER_CHARACTERS = 100


class Columns(TaskFile):
    """The names of the columns of a model with one input for all; a model with one for each names them."""

    columns: tuple[str, ...] = ()


class Rows(Payload):
    """Rows by column name, or as lists in the model's order; or CSV."""

    main_field = "rows"
    content_types = ("text/csv",)

    rows: list[dict[str, Any] | list[Any]] = Field(
        min_length=1, max_length=MAX_ROWS, examples=[[{"age": 31, "income": 52000}]]
    )

    @classmethod
    def fields_of_raw(cls, body: bytes) -> dict[str, Any]:
        try:
            rows = filter(None, csv.reader(io.StringIO(body.decode("utf-8-sig")), strict=True))
            # One more than are taken is refused. Lines without an end would be lists without an end.
            return {"rows": list(itertools.islice(rows, MAX_ROWS + 1))}
        except (UnicodeDecodeError, csv.Error) as error:
            raise BadInput(f"the body is not CSV in UTF-8: {error}") from None


class Tabular(TensorClient):
    """A row of the model's outputs by name for each row. Types and columns are the model's inputs.

    The first line of CSV may name the columns.
    """

    payload = Rows
    result = Table()

    def setup(self) -> None:
        metadata = self.triton.metadata(self.model)
        self.columns: list[tuple[str, TensorMetadata]] = []
        named = Columns.read(self.repository / self.model).columns
        for tensor in metadata.inputs.values():
            shape = record_shape(metadata, tensor, 1)
            if shape is None or tensor.datatype not in DTYPES:
                raise UnsuitableModel(
                    f"{self.model!r} takes {tensor.name} {tensor.datatype} {list(tensor.shape)}: columns are "
                    f"expected, of {', '.join(DTYPES)}."
                )
            if len(metadata.inputs) > 1:
                self.columns.append((tensor.name, tensor))
                continue
            count = shape[0] if shape[0] > 0 else len(named)
            if named and count != len(named):
                raise UnsuitableModel(f"task.json names {len(named)} columns, {self.model!r} has {count}.")
            self.columns = [(name, tensor) for name in named or map(str, range(count))]
        self.names = [name for name, _ in self.columns]

    def inference(self, payload: Any) -> list[dict[str, Any]]:
        outputs = self.triton.infer(self.model, self.preprocess(payload), split=True)
        return self.postprocess(outputs, payload)

    def preprocess(self, payload: Rows) -> Tensors:
        """Return each input for all rows, [rows, columns]."""
        rows = payload.rows
        if isinstance(rows[0], list) and set(rows[0]) == set(self.names):  # the header of CSV
            header, rows = rows[0], [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]
            if not rows:
                raise WrongPayload(f"payload.rows: there is only the header {header}", field="payload.rows")
        values = [self.ordered(row, number) for number, row in enumerate(rows)]
        inputs: dict[str, list[Array]] = {}
        for (name, tensor), column in zip(self.columns, zip(*values, strict=True), strict=True):
            inputs.setdefault(tensor.name, []).append(self.column(name, tensor, column))
        return {name: np.stack(columns, axis=1) for name, columns in inputs.items()}

    def ordered(self, row: Mapping[str, Any] | Sequence[Any], number: int) -> list[Any]:
        """Return the values of a row in the model's order."""
        field = f"payload.rows[{number}]"
        if isinstance(row, Mapping):
            if row.keys() != set(self.names):
                missing, unknown = set(self.names) - row.keys(), row.keys() - set(self.names)
                problem = f"lacks {sorted(missing)}" if missing else f"has unknown columns {sorted(unknown)}"
                raise WrongPayload(f"{field}: {problem}; the columns are {self.names}", field=field)
            return [row[name] for name in self.names]
        if len(row) != len(self.names):
            raise WrongPayload(f"{field}: has {len(row)} values for {len(self.names)} columns", field=field)
        return list(row)

    def column(self, name: str, tensor: TensorMetadata, values: Sequence[Any]) -> Array:
        """Convert a column to its input's type. CSV has texts only, which NumPy reads as numbers."""
        if tensor.datatype == "BYTES":
            return np.array([str(value).encode() for value in values], np.object_)
        try:
            if any(not _is_short(value) for value in values):
                raise ValueError("not a number")
            sent = np.array(values)
            converted: Array = sent.astype(DTYPES[tensor.datatype])
            fits = bool(np.isfinite(converted).all()) and (sent.dtype.kind != "f" or is_near(converted, sent))
        except (ValueError, TypeError, OverflowError):
            fits = False
        if not fits:
            raise WrongPayload(
                f"payload.rows: column {name!r} has values that are not {tensor.datatype}",
                field="payload.rows",
            )
        return converted

    def postprocess(self, outputs: Tensors, payload: Rows) -> list[dict[str, Any]]:  # noqa: ARG002
        columns = {name: _plain(array) for name, array in outputs.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _is_short(value: object) -> bool:
    """True if a value can be one number: not a list, nor a long text."""
    return not isinstance(value, list | dict) and (
        not isinstance(value, str) or len(value) <= MAX_NUMBER_CHARACTERS
    )


def is_near(converted: Array, sent: Array) -> bool:
    """False if a conversion to integers cut off decimals."""
    return converted.dtype.kind == "f" or np.array_equal(converted, sent)


def _plain(array: Array) -> list[Any]:
    """Return a value for each row: a number or text if the output has one, else a list."""
    rows = array.reshape(len(array), -1)
    values = rows[:, 0].tolist() if rows.shape[1] == 1 else rows.tolist()
    return [value.decode() if isinstance(value, bytes) else value for value in values]
