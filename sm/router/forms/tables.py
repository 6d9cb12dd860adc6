"""Rows for tabular models, as MLflow's server, TensorFlow Serving and SageMaker's toolkits take them.

MLflow's server has ``dataframe_split``, ``dataframe_records``, ``inputs`` and ``instances``
(https://mlflow.org/docs/latest/ml/deployment/deploy-model-locally), TensorFlow Serving ``instances``
(https://www.tensorflow.org/tfx/serving/api_rest); a toolkit's default ``input_fn`` takes a bare array. The
answer has a value for each row, or an object where the model has several outputs: ``{"predictions": […]}``,
and for an array a bare list.
"""

# ruff: noqa: ARG002  # the answer needs the results only

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sm.client.hugging_face import Pipeline
from sm.client.results import TableRows
from sm.errors import WrongPayload

#: The members that hold the rows.
SOURCES = ("instances", "dataframe_split", "dataframe_records", "inputs")
#: Members beside them that say nothing to a model without signatures.
IGNORED = frozenset({"params", "signature_name", "modelname", "version"})


class TableForm(Pipeline):
    """Writes the answer. ``member``: what it is in; empty: it is bare."""

    def __init__(self, member: str) -> None:
        self.member = member

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        values = TableRows(results[0]).values()
        return {self.member: values} if self.member else values


BARE, PREDICTIONS = TableForm(""), TableForm("predictions")


def read_table(value: Any, client: Any) -> tuple[TableForm, str, list[Any]] | None:
    """Return the form, the member with the rows, and the rows of a JSON value; None for another form.

    Args:
        value: The whole body.
        client: A tabular one.

    Raises:
        WrongPayload: It is of a form, and malformed; the error names the member.
    """
    if isinstance(value, list):
        return BARE, "body", _rows(value, client)
    if not isinstance(value, dict):
        return None
    if value and value.keys() == {*client.names}:
        return BARE, "body", [value]
    found = [name for name in SOURCES if name in value]
    if len(found) != 1 or not value.keys() - {*found} <= IGNORED:
        return None
    (name,) = found
    rows = value[name]
    if name == "inputs" and not (isinstance(rows, list) or _is_columns(rows)):
        return None  # Hugging Face's
    if name == "dataframe_split":
        rows = _read_split(rows)
    elif isinstance(rows, dict) and name == "inputs":
        rows = _read_columns(rows)
    elif not isinstance(rows, list):
        raise WrongPayload(f"{name}: must be a list of rows", field=name)
    return PREDICTIONS, name, _rows(rows, client)


def _is_columns(value: Any) -> bool:
    return (
        isinstance(value, dict) and bool(value) and all(isinstance(values, list) for values in value.values())
    )


def _read_columns(columns: Mapping[str, list[Any]]) -> list[Any]:
    """Return the rows of columns by name."""
    if len({len(values) for values in columns.values()}) > 1:
        raise WrongPayload("inputs: the columns differ in length", field="inputs")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _read_split(value: Any) -> list[Any]:
    """Return the rows of what ``to_dict(orient="split")`` of pandas makes; its index says nothing."""
    field = "dataframe_split"
    columns, rows = (value.get("columns"), value.get("data")) if isinstance(value, dict) else (None, None)
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise WrongPayload(f"{field}: must have columns and data, a list of rows", field=f"{field}.data")
    if columns is None:
        return rows
    if not isinstance(columns, list) or any(len(row) != len(columns) for row in rows):
        raise WrongPayload(f"{field}.columns: must name each value of a row", field=f"{field}.columns")
    names = [str(name) for name in columns]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _rows(rows: list[Any], client: Any) -> list[Any]:
    """Return rows whose cells are values: a model's one tensor becomes its columns."""
    if not any(isinstance(row, list | dict) for row in rows):
        # As a toolkit's model takes them: values of a row, or of one column.
        rows = [rows] if len(client.names) != 1 else [[value] for value in rows]
    tensors = {tensor.name for _, tensor in client.columns}
    made: list[Any] = []
    for row in rows:
        cells = row
        if isinstance(row, dict) and len(tensors) == 1 and row.keys() == tensors != {*client.names}:
            (cells,) = row.values()
        if isinstance(cells, dict):
            cells = {name: _cell(value) for name, value in cells.items()}
        elif isinstance(cells, list):
            cells = [_cell(value) for value in cells]
        made.append(cells)
    return made


def _cell(value: Any) -> Any:
    """Return the value of a cell, which a tensor of one column has in a list."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
