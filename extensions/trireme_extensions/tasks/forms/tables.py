"""Rows for tabular models, as MLflow's server, TensorFlow Serving and SageMaker's toolkits take them.

MLflow's server has ``dataframe_split``, ``dataframe_records``, ``inputs`` and ``instances``
(https://mlflow.org/docs/latest/ml/deployment/deploy-model-locally), TensorFlow Serving ``instances``
(https://www.tensorflow.org/tfx/serving/api_rest); a toolkit's default ``input_fn`` takes a bare array. The
answer has a value for each row, or an object where the model has several outputs: ``{"predictions": […]}``,
and for an array a bare list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sm.client.results import TableRows
from sm.errors import FieldPath, WrongPayload
from sm.http.messages import JSON
from sm.router.forms.dispatch import ADDRESS_MEMBERS, check_types
from sm.router.forms.form import Form, Reading
from sm.router.forms.v2 import has_inputs, is_v2
from sm.router.request_types import Call, DispatchRequest
from trireme_extensions.tasks.forms.hugging_face import (
    HuggingFace,
    TabularAnswers,
    check_count,
    form_of,
    is_columns,
    read_columns,
    read_names,
)

#: The members that hold the rows.
SOURCES = ("instances", "dataframe_split", "dataframe_records", "inputs")
#: Members beside them that say nothing to a model without signatures.
IGNORED = frozenset({"params", "signature_name", "modelname", "version"})
#: The place of rows that are the whole body.
BODY = ("body",)


class TableCall(Call):
    """Rows that were found in a body, at ``place``; the answer is bare if it is the body itself."""

    def __init__(self, place: str, rows: list[Any], members: Mapping[str, Any]) -> None:
        super().__init__([{"rows": rows}], None, *read_names(members), (place,))

    def name(self, path: FieldPath) -> FieldPath:
        # The payload's own member is not the caller's.
        own = ("data",) if path[0] == "dataframe_split" else ()
        return (path[0], *own, *path[2:]) if path[1:2] == ("rows",) else path

    def convert(self, found: list[Any], client: Any) -> Any:  # noqa: ARG002
        values = TableRows(found[0]).values()
        return values if self.root == BODY else {"predictions": values}


class Tables(Form):
    """Rows for a tabular client."""

    def has(self, reading: Reading) -> bool:
        return (
            reading.inference_type == "infer"
            and reading.is_json
            and isinstance(form_of(reading.client), TabularAnswers)
            and not (has_inputs(reading) and is_v2(reading))
            and find_table(reading.value, reading.client) is not None
        )

    def read(self, reading: Reading) -> TableCall | DispatchRequest:
        place = find_table(reading.value, reading.client) or ""
        rows = read_table(reading.value, place, reading.client)
        members = reading.value if isinstance(reading.value, dict) else {}
        check_types(members)
        if reading.accept != JSON:  # only JSON has the form's own answer
            names = {name: members[name] for name in ADDRESS_MEMBERS if members.get(name) is not None}
            return reading.dispatch({**names, "payload": {"rows": rows}})
        return TableCall(place, rows, members)


def find_table(value: Any, client: Any) -> str | None:
    """Return the member of a JSON value that has rows, or ``body``; None for another form.

    Args:
        value: The whole body.
        client: A tabular one.
    """
    if isinstance(value, list):
        return "body"
    if not isinstance(value, dict):
        return None
    if value and value.keys() == {*client.names}:
        return "body"
    found = [name for name in SOURCES if name in value]
    if len(found) != 1 or not value.keys() - {*found} <= IGNORED:
        return None
    (name,) = found
    is_table = name != "inputs" or isinstance(value[name], list) or (value[name] and is_columns(value[name]))
    return name if is_table else None  # else Hugging Face's


def read_table(value: Any, place: str, client: Any) -> list[Any]:
    """Return the rows of a JSON value at the place that :func:`find_table` returned.

    Raises:
        WrongPayload: They are malformed; the error names the member.
    """
    if place == "body":
        return _rows(value if isinstance(value, list) else [value], client, place)
    rows = value[place]
    if place == "dataframe_split":
        rows = _read_split(rows)
    elif isinstance(rows, dict) and place == "inputs":
        rows = read_columns(rows, place)
    elif not isinstance(rows, list):
        raise WrongPayload("must be a list of rows", field=(place,))
    return _rows(rows, client, place)


def _read_split(value: Any) -> list[Any]:
    """Return the rows of what ``to_dict(orient="split")`` of pandas makes; its index says nothing."""
    field = "dataframe_split"
    columns, rows = (value.get("columns"), value.get("data")) if isinstance(value, dict) else (None, None)
    if not isinstance(rows, list) or set(map(type, rows)) - {list}:
        raise WrongPayload("must be beside columns, a list of rows", field=(field, "data"))
    if columns is None:
        return rows
    if not isinstance(columns, list) or set(map(len, rows)) - {len(columns)}:
        raise WrongPayload("must name each value of a row", field=(field, "columns"))
    check_count(len(rows), field, "data")
    names = [str(name) for name in columns]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _rows(rows: list[Any], client: Any, place: str) -> list[Any]:
    """Return rows whose cells are values: a model's one tensor becomes its columns."""
    is_plain = not {list, dict} & set(map(type, rows))
    if is_plain and len(client.names) != 1:  # a toolkit's model takes plain values as one row
        return [rows]
    check_count(len(rows), place)
    if is_plain:  # or as the rows of its one column
        return [[value] for value in rows]
    tensors = {tensor.name for _, tensor in client.columns}
    made: list[Any] = []
    for row in rows:
        cells = row
        if isinstance(row, dict) and len(tensors) == 1 and row.keys() == tensors != {*client.names}:
            (cells,) = row.values()
        if isinstance(cells, dict) and list in set(map(type, cells.values())):
            cells = {name: _cell(value) for name, value in cells.items()}
        elif isinstance(cells, list) and list in set(map(type, cells)):
            cells = [_cell(value) for value in cells]
        made.append(cells)
    return made


def _cell(value: Any) -> Any:
    """Return the value of a cell, which a tensor of one column has in a list."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


#: The table is asked first: Hugging Face's form has ``inputs`` too.
FORMS = (Tables(), HuggingFace())
