"""The tabular task reads rows as JSON and CSV, with the names and types of the model's inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from sm.client.base import TensorClient
from sm.client.tasks.tabular import Rows
from sm.errors import BadInput, StartError, WrongPayload
from tests.support.onnx_graphs import save_graph
from tests.support.task_models import load_task

CSV = b"age,income\n31,52000\n64,18000\n"


def load_columns(folder: Path) -> TensorClient:
    """A model with an input for each column: age INT64, income FP32. It gives their sum and the older age."""
    save_graph(
        folder / "model.onnx",
        [
            helper.make_node("Cast", ["age"], ["years"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["years", "income"], ["sum"]),
            helper.make_node("Identity", ["age"], ["same"]),
        ],
        {"age": (TensorProto.INT64, ["b", 1]), "income": (TensorProto.FLOAT, ["b", 1])},
        {"sum": (TensorProto.FLOAT, ["b", 1]), "same": (TensorProto.INT64, ["b", 1])},
    )
    return load_task(folder, task="tabular")


def load_matrix(folder: Path, **options: Any) -> TensorClient:
    """A model with one input of two columns."""
    weights = (numpy_helper.from_array(np.array([[1], [10]], np.float32), "w"),)
    save_graph(
        folder / "model.onnx",
        [helper.make_node("MatMul", ["X", "w"], ["y"])],
        {"X": (TensorProto.FLOAT, ["b", 2])},
        {"y": (TensorProto.FLOAT, ["b", 1])},
        weights,
    )
    return load_task(folder, task="tabular", **options)


def ask(client: TensorClient, rows: Any) -> Any:
    return client.inference(Rows.model_validate({"rows": rows}))


@pytest.mark.parametrize(
    "rows",
    [
        [{"age": 31, "income": 52000}, {"income": 18000, "age": 64}],
        [[31, 52000], [64, 18000]],
        Rows.fields_of_raw(CSV)["rows"],
        Rows.fields_of_raw(b"income,age\r\n52000,31\r\n18000,64\r\n")["rows"],
        Rows.fields_of_raw(b"31,52000\n64,18000")["rows"],
    ],
)
def test_rows_of_every_form_get_the_same_answer(tmp_path: Path, rows: Any) -> None:
    client = load_columns(tmp_path / "people")
    assert ask(client, rows) == [{"sum": 52031, "same": 31}, {"sum": 18064, "same": 64}]


def test_one_input_for_all_columns_takes_their_names_from_the_task_file(tmp_path: Path) -> None:
    client = load_matrix(tmp_path / "people", columns=["a", "b"])
    assert ask(client, [{"b": 2, "a": 1}]) == [{"y": 21}]
    assert ask(load_matrix(tmp_path / "unnamed"), [[1, 2]]) == [{"y": 21}]
    with pytest.raises(StartError, match=r"task.json names 3 columns, 'people' has 2"):
        load_matrix(tmp_path / "people", columns=["a", "b", "c"])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"age": 31}], r"rows\[0\]: lacks \['income'\]"),
        ([{"age": 31, "income": 1, "size": 2}], r"has unknown columns \['size'\]"),
        ([[31, 1], [31]], r"rows\[1\]: has 1 values for 2 columns"),
        ([[31, "much"]], "column 'income' has values that are not FP32"),
        ([[31, None]], "column 'income' has values that are not FP32"),
        ([[31.5, 1]], "column 'age' has values that are not INT64"),
        ([[10**400, 1]], "column 'age' has values that are not INT64"),
        ([["age", "income"]], "there is only the header"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_its_place(tmp_path: Path, rows: Any, sentence: str) -> None:
    with pytest.raises(WrongPayload, match=sentence):
        ask(load_columns(tmp_path / "people"), rows)


def test_a_body_that_is_not_csv_is_bad_input() -> None:
    with pytest.raises(BadInput, match="not CSV"):
        Rows.fields_of_raw(b"\xff\xfe1,2")
