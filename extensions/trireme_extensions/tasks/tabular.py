"""Tabular models: rows of numbers and words in, the model's outputs for each row out."""

from __future__ import annotations

import csv
import heapq
import io
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from sm.client.base import Array, TensorClient, TensorMetadata, Tensors
from sm.client.payloads import NPY_MAGIC, Payload, read_npy
from sm.client.results import Table, TableRows
from sm.client.tensor_roles import UnsuitableModel, record_shape
from sm.errors import BadInput, WrongPayload
from sm.http.messages import CSV, NPY
from trireme_extensions.tasks.task_file import TASK_FILE, TaskFile

INTEGERS = ("INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8")
DTYPES: Mapping[str, Any] = {
    "FP32": np.float32,
    "FP64": np.float64,
    "FP16": np.float16,
    **{name: np.dtype(name.lower()) for name in INTEGERS},
    "BOOL": np.bool_,
    "BYTES": np.object_,
}
#: Rows of a request.
MAX_ROWS = 10_000
#: Characters of a number's text.
MAX_NUMBER_CHARACTERS = 100
#: Numbers as texts, such as the cells of CSV. Python's own readers take ``1_000`` and other scripts' digits.
INTEGER = re.compile(r"\s*([+-]?[0-9]{1,20})(?:\.0*)?\s*")
NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*")
#: Integers up to this are exact; a larger number is the nearest one that 64 bits of floating point have.
MAX_EXACT = 2**53
TRUTHS = {"true": True, "false": False, "1": True, "0": False}


def to_integer(value: Any) -> int:
    """Return the integer of a cell. Raises ValueError if it is not an integer, or cannot be told exactly."""
    if type(value) is int:
        return value
    if type(value) is str and (match := INTEGER.fullmatch(value)):
        return int(match[1])
    if type(value) is float and value.is_integer() and abs(value) < MAX_EXACT:
        return int(value)
    raise ValueError("not an integer")


def to_number(value: Any) -> float:
    """Return the number of a cell. Raises ValueError if it is not a number, OverflowError if too large."""
    if type(value) in (int, float):
        return float(value)
    if type(value) is str and len(value) <= MAX_NUMBER_CHARACTERS and NUMBER.fullmatch(value):
        return float(value)
    raise ValueError("not a number")


def is_missing(value: Any) -> bool:
    """True if a cell has no value, as SageMaker's container for XGBoost reads CSV, and pandas JSON."""
    if type(value) is str:
        return len(value) <= MAX_NUMBER_CHARACTERS and value.strip().lower() in ("", "nan")
    return value is None or (type(value) is float and math.isnan(value))


def to_truth(value: Any) -> bool:
    """Return the truth value that a cell is: true, false, 1 or 0, or one of them as a text."""
    if type(value) is bool or (type(value) is int and value in (0, 1)):
        return bool(value)
    if type(value) is str and (word := value.strip().lower()) in TRUTHS:
        return TRUTHS[word]
    raise ValueError("not a truth value")


def to_bytes(value: Any) -> bytes:
    """Return a text's bytes. Raises ValueError for anything else: null is not the text ``None``."""
    if type(value) is not str:
        raise ValueError("not a text")
    return value.encode()


def reader_of(datatype: str) -> Callable[[Any], Any]:
    """Return what reads a cell of a datatype. Nothing is rounded to an integer, cut off or wrapped around."""
    if datatype in ("BOOL", "BYTES"):
        return to_truth if datatype == "BOOL" else to_bytes
    is_float = datatype.startswith("FP")
    limits: Any = np.finfo(DTYPES[datatype]) if is_float else np.iinfo(DTYPES[datatype])
    least, most = (float(limits.min), float(limits.max)) if is_float else (limits.min, limits.max)

    def read_within(value: Any) -> float:
        if is_float and is_missing(value):
            return math.nan
        number = to_number(value) if is_float else to_integer(value)
        if not least <= number <= most:
            raise ValueError("out of range")
        return number

    return read_within


class ColumnNames(TaskFile):
    """The names of the columns of a model with one input for all; a model with one for each names them."""

    columns: tuple[str, ...] = ()


class Rows(Payload):
    """Rows by column name, or as lists in the model's order; or CSV."""

    main_field = "rows"
    content_types = (CSV, NPY)
    reads_nan = True

    rows: list[dict[str, Any] | list[Any]] = Field(
        min_length=1, max_length=MAX_ROWS, examples=[[{"age": 31, "income": 52000}]]
    )
    header: Literal["present", "absent"] | None = Field(
        default=None,
        description="Whether the first row names the columns; by default, if its names are the model's.",
    )

    @classmethod
    def fields_of_raw(cls, body: bytes) -> dict[str, Any]:
        if body.startswith(NPY_MAGIC):
            return {"rows": rows_of(read_npy(body))}
        try:
            rows = filter(None, csv.reader(io.StringIO(body.decode("utf-8-sig")), strict=True))
            # One more than are taken is refused. Lines without an end would be lists without an end.
            return {"rows": list(itertools.islice(rows, MAX_ROWS + 1))}
        except (UnicodeDecodeError, csv.Error) as error:
            raise BadInput(f"the body is not CSV in UTF-8: {error}") from None

    @classmethod
    def read_raw(cls, body: bytes, options: Mapping[str, str]) -> dict[str, Any]:
        """Read CSV. Its content type may say ``header=present`` or ``header=absent`` (RFC 4180)."""
        header = options.get("header", "").lower()
        if header not in ("", "present", "absent"):
            raise BadInput(f"the header of text/csv is present or absent, not {header[:40]!r}")
        return {**cls.fields_of_raw(body), **({"header": header} if header else {})}


def rows_of(array: Array) -> list[list[Any]]:
    """Return the rows of an array [rows, columns] or [columns]. Raises :class:`BadInput`."""
    rows = array[None] if array.ndim == 1 else array
    if rows.ndim != 2 or rows.dtype.kind not in "biufU":
        raise BadInput(
            f"the array has the shape {list(array.shape)} and the type {array.dtype}: send rows and "
            "columns of numbers or texts"
        )
    listed: list[list[Any]] = rows[: MAX_ROWS + 1].tolist()
    return listed


class Tabular(TensorClient):
    """A row of the model's outputs by name for each row. Types and columns are the model's inputs.

    The first row may name the columns: if the request says so, or if its names are the model's own.
    """

    payload = Rows
    result = Table()

    def setup(self) -> None:
        metadata = self.triton.metadata(self.model)
        self.columns: list[tuple[str, TensorMetadata]] = []
        named = ColumnNames.read(self.repository / self.model, TASK_FILE).columns
        #: True if the columns have names of their own; False if they are numbered here.
        self.are_named = bool(named) or len(metadata.inputs) > 1
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

    def inference(self, payload: Any) -> TableRows:
        outputs = self.triton.infer(self.model, self.preprocess(payload), split=True)
        return self.postprocess(outputs, payload)

    def preprocess(self, payload: Rows) -> Tensors:
        """Return each input for all rows, [rows, columns]."""
        rows, first = self.without_header(payload)
        values = [self.ordered(row, number) for number, row in enumerate(rows, first)]
        inputs: dict[str, list[Array]] = {}
        for (name, tensor), column in zip(self.columns, zip(*values, strict=True), strict=True):
            inputs.setdefault(tensor.name, []).append(self.column(name, tensor, column, first))
        return {name: np.stack(columns, axis=1) for name, columns in inputs.items()}

    def without_header(self, payload: Rows) -> tuple[Sequence[Any], int]:
        """Return the rows of values, and the number of the first of them among the payload's rows."""
        rows = payload.rows
        header = rows[0]
        if isinstance(header, Mapping) or payload.header == "absent":
            return rows, 0
        is_own = (
            self.are_named
            and all(isinstance(name, str) for name in header)
            and sorted(header) == sorted(self.names)
        )
        # Numbers cannot be told from names that are numbers.
        if payload.header is None and (not is_own or all(map(NUMBER.fullmatch, header))):
            return rows, 0
        if len(rows) == 1:
            raise WrongPayload(f"there is only the header {header}", field=("payload", "rows"))
        if not self.are_named:
            return rows[1:], 1
        if not is_own:
            problem = f"the header is {str(header)[:200]}; the columns are {self.names}"
            raise WrongPayload(problem, field=("payload", "rows", 0))
        for number, row in enumerate(rows[1:], 1):
            self.check_length(row, number)
        return [
            row if isinstance(row, Mapping) else dict(zip(header, row, strict=True)) for row in rows[1:]
        ], 1

    def check_length(self, row: Mapping[str, Any] | Sequence[Any], number: int) -> None:
        """Raise :class:`WrongPayload` if a row has more or fewer values than there are columns."""
        if not isinstance(row, Mapping) and len(row) != len(self.names):
            problem = f"has {len(row)} values for {len(self.names)} columns"
            raise WrongPayload(problem, field=("payload", "rows", number))

    def ordered(self, row: Mapping[str, Any] | Sequence[Any], number: int) -> list[Any]:
        """Return the values of a row in the model's order."""
        self.check_length(row, number)
        if not isinstance(row, Mapping):
            return list(row)
        if row.keys() != set(self.names):
            missing = sorted(set(self.names) - row.keys())
            unknown = heapq.nsmallest(5, () if missing else row.keys() - set(self.names))
            problem = f"lacks {missing}" if missing else f"has unknown columns {unknown}"
            raise WrongPayload(f"{problem}; the columns are {self.names}", field=("payload", "rows", number))
        return [row[name] for name in self.names]

    def column(self, name: str, tensor: TensorMetadata, values: Sequence[Any], first: int) -> Array:
        """Convert a column to its input's type; ``first``: the number of the first row."""
        read, cells = reader_of(tensor.datatype), []
        for number, value in enumerate(values, first):
            try:
                cells.append(read(value))
            except (ValueError, OverflowError):
                problem = f"column {name!r} has values that are not {tensor.datatype}"
                raise WrongPayload(problem, field=("payload", "rows", number)) from None
        converted: Array = np.array(cells, DTYPES[tensor.datatype])
        return converted

    def postprocess(self, outputs: Tensors, payload: Rows) -> TableRows:  # noqa: ARG002
        columns = {name: _plain(array) for name, array in outputs.items()}
        return TableRows(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def _plain(array: Array) -> list[Any]:
    """Return a value for each row: a number or text if the output has one, else a list."""
    rows = array.reshape(len(array), -1).tolist()
    if array.dtype.kind == "O":
        rows = [[value.decode() if isinstance(value, bytes) else value for value in row] for row in rows]
    return [row[0] if len(row) == 1 else row for row in rows]
