"""Rows in the forms of other servers become a table, and results become predictions."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from sm.client.base import Client
from sm.client.payloads import write_npy
from sm.errors import BadInput, TriremeError, WrongPayload
from sm.http.messages import CSV, JSON, JSON_LINES, NPY
from sm.invocation import Invocation
from sm.models.table import models_of
from sm.router import answers
from sm.router.answers import dumps
from sm.router.classify import RequestClassifier
from sm.router.dispatch import run_record
from sm.router.request_types import DispatchRequest, Message
from tests.support.onnx_graphs import write_graph
from tests.support.rerankers import write_reranker
from tests.support.task_models import load_task


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Client:
    folder = write_reranker(tmp_path_factory.mktemp("model") / "ranker")
    return load_task(folder, **json.loads((folder / "task.json").read_text()))


def classified(client: Client, body: Any, accept: str = "") -> DispatchRequest:
    content = body if isinstance(body, bytes) else dumps(body)
    headers = {"content-type": JSON, **({"accept": accept} if accept else {})}
    message = Message(content, headers, {}, "id", client.name)
    request = RequestClassifier(models_of({client.name: client})).parse(message)
    assert isinstance(request, DispatchRequest)
    return request


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Client]:
    """One with an input of two columns, and one with an input and an output for each of two."""
    folder = tmp_path_factory.mktemp("model")
    found: dict[str, Client] = {}
    for name, text in (
        ("matrix", "(float[b,2] X) => (float[b,1] y) <float[2,1] w = {1, 10}> { y = MatMul(X, w) }"),
        ("people", "(int64[b,1] age, float[b,1] income) => (float[b,1] a, int64[b,1] b) "
         "{ a = Identity(income) b = Identity(age) }"),
    ):  # fmt: skip
        write_graph(folder / name / "model.onnx", text)
        found[name] = load_task(folder / name, task="tabular")
    return found


def table_answer(client: Client, body: Any, accept: str = "") -> Any:
    request = classified(client, body, accept)
    result = run_record(request, Invocation(math.inf))
    if request.call is not None:
        return json.loads(answers.write_call(request, request.call, iter([result])).read())
    return answers.write(request, result).read()


ROWS = [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ROWS, [21, 43]),
        ([1, 2], [21]),
        ({"instances": ROWS}, {"predictions": [21, 43]}),
        ({"instances": ROWS, "signature_name": "serving_default"}, {"predictions": [21, 43]}),
        ({"instances": [{"X": row} for row in ROWS]}, {"predictions": [21, 43]}),
        ({"inputs": ROWS}, {"predictions": [21, 43]}),
        ({"inputs": {"X": ROWS}}, {"predictions": [21, 43]}),
        ({"inputs": {"0": [1, 3], "1": [2, 4]}}, {"predictions": [21, 43]}),
        ({"inputs": {"0": [[1], [3]], "1": [[2], [4]]}}, {"predictions": [21, 43]}),
        ({"dataframe_split": {"columns": ["1", "0"], "data": ROWS}}, {"predictions": [12, 34]}),
        ({"dataframe_split": {"columns": [1, 0], "data": ROWS, "index": [0, 1]}}, {"predictions": [12, 34]}),
        ({"dataframe_records": [{"0": 1, "1": 2}]}, {"predictions": [21]}),
        ({"inputs": {"data": {"0": [1, 3], "1": [2, 4]}}}, [{"y": 21}, {"y": 43}]),
        (b"[[1, NaN], [3, 4]]", [None, 43]),
        (
            b'{"payload": {"rows": [[NaN, 1], [3, 4]]}}',
            b'{"modelname":"matrix","result":[{"y":null},{"y":43.0}]}',
        ),
    ],
)
def test_rows_are_taken_in_the_forms_of_other_servers(
    tables: dict[str, Client], body: Any, expected: Any
) -> None:
    assert table_answer(tables["matrix"], body) == expected


def test_a_prediction_of_several_outputs_is_an_object(tables: dict[str, Client]) -> None:
    rows = {"instances": [{"age": 31, "income": 5.5}, {"age": [64], "income": [None]}]}
    expected = [{"a": 5.5, "b": 31}, {"a": None, "b": 64}]
    assert table_answer(tables["people"], rows) == {"predictions": expected}
    assert table_answer(tables["people"], {"age": 31, "income": 5.5}) == expected[:1]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [(CSV, b"21.0\n43.0"), (JSON_LINES, b'{"y":21.0}\n{"y":43.0}'), ("*/*", [21, 43])],
)
def test_other_types_have_a_line_for_each_row(tables: dict[str, Client], accept: str, expected: Any) -> None:
    assert table_answer(tables["matrix"], ROWS, accept) == expected
    array = table_answer(tables["people"], [[31, 5]], NPY)
    assert array.startswith(b"\x93NUMPY")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"instances": 3}, "instances"),
        ({"dataframe_split": {"columns": ["0"], "data": ROWS}}, "dataframe_split.columns"),
        ({"dataframe_split": {"columns": ["0", "1"], "data": [3]}}, "dataframe_split.data"),
        ({"dataframe_split": []}, "dataframe_split.data"),
        ({"inputs": {"0": [1], "1": [1, 2]}}, "inputs"),
        ({"instances": ROWS, "dataframe_records": []}, "instances"),
        ({"instances": ROWS, "extra": 1}, "instances"),
    ],
)
def test_a_malformed_table_is_refused_with_its_member(
    tables: dict[str, Client], body: Any, field: str
) -> None:
    with pytest.raises(WrongPayload) as caught:
        classified(tables["matrix"], body)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([[1, 2], [1]], "body[1]"),
        ({"instances": [[1, 2], [1, "x"]]}, "instances[1]"),
        ({"inputs": [[1]]}, "inputs[0]"),
        ({"dataframe_records": [{"0": 1}]}, "dataframe_records[0]"),
        ({"dataframe_split": {"data": [[1, 2], [1]]}}, "dataframe_split.data[1]"),
    ],
)
def test_a_wrong_row_has_the_place_that_its_caller_sent(
    tables: dict[str, Client], body: Any, field: str
) -> None:
    request = classified(tables["matrix"], body)
    with pytest.raises(WrongPayload) as caught:
        run_record(request, Invocation(math.inf), 0, request.place(0))
    assert caught.value.details["field"] == field


def test_a_missing_value_of_an_integer_names_its_column(tables: dict[str, Client]) -> None:
    for body in ([[None, 1.5]], b"[[NaN, 1.5]]", {"instances": [{"age": None, "income": 1}]}):
        request = classified(tables["people"], body)
        with pytest.raises(WrongPayload, match="'age'"):
            run_record(request, Invocation(math.inf), 0, request.place(0))


def test_no_other_client_reads_nan_or_a_bare_list(ranker: Client) -> None:
    for body in (b'{"payload": NaN}', b'{"payload": "ada", "parameters": {"top": NaN}}', b"[[1]]"):
        with pytest.raises(BadInput):
            classified(ranker, body)


def test_an_array_of_numpy_is_rows(tables: dict[str, Client]) -> None:
    read = tables["matrix"].payload.fields_of_raw
    for array, rows in ((np.array(ROWS, np.int8), ROWS), (np.array([1.5, np.inf]), [[1.5, math.inf]])):
        assert read(write_npy(array)) == {"rows": rows}
    for array in (
        np.zeros((1, 1, 1)),
        np.array(3.0),
        np.array(["2020"], "M8[D]"),
        np.zeros(2, [("a", "f4")]),
    ):
        with pytest.raises(TriremeError):
            read(write_npy(array))
