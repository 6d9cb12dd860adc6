"""The tabular task reads rows as JSON and CSV, with the names and types of the model's inputs."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from sm.client.base import TensorClient
from sm.client.tasks.tabular import DTYPES, Rows, reader_of
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
    with pytest.raises(StartError, match="task.json"):
        load_matrix(tmp_path / "people", columns=["a", "b", "c"])


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([{"age": 31}], "income"),
        ([{"age": 31, "income": 1, "size": 2}], "size"),
        ([[31, 1], [31]], r"rows\[1\]"),
        ([[31, "much"]], "income"),
        ([[31, None]], "income"),
        ([[31.5, 1]], "age"),
        ([[10**400, 1]], "age"),
        ([["age", "income"]], "header"),
        ([[31, 1], [{"a": 1}, 1]], r"rows\[1\].*age"),
        ([[[31], 1]], r"rows\[0\].*age"),
        ([["age", "income"], [31, 1, 5]], r"rows\[1\]"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_its_place(tmp_path: Path, rows: Any, named: str) -> None:
    with pytest.raises(WrongPayload, match=named):
        ask(load_columns(tmp_path / "people"), rows)


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=6)


@given(
    st.lists(st.lists(CELLS, min_size=1, max_size=4), max_size=4),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "\ufeff"]),
)
def test_csv_of_the_standard_librarys_writer_is_read_back(rows: list[list[str]], end: str, mark: str) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator=end).writerows(rows)
    assert Rows.fields_of_raw((mark + text.getvalue()).encode()) == {"rows": rows}


@given(st.binary(max_size=30) | st.text('a",\n', max_size=9).map(str.encode))
def test_any_body_is_rows_of_text_or_bad_input(body: bytes) -> None:
    try:
        rows = Rows.fields_of_raw(body)["rows"]
    except BadInput:
        return
    assert all(isinstance(cell, str) for row in rows for cell in row)


@pytest.mark.parametrize(
    ("body", "options", "right"),
    [
        (b"1,0\n0,1\n", {}, [1, 10]),
        (b"0,1\n5,6\n", {}, [10, 65]),
        (b"1,0\n5,6\n", {"header": "absent"}, [1, 65]),
        (b"0,1\n5,6\n", {"header": "present"}, [65]),
        (b"a,b\n5,6\n", {"header": "Present"}, [65]),
    ],
)
def test_invented_names_are_not_a_header_unless_the_request_says_so(
    tmp_path: Path, body: bytes, options: dict[str, str], right: list[float]
) -> None:
    rows = load_matrix(tmp_path / "unnamed").inference(Rows.model_validate(Rows.read_raw(body, options)))
    assert rows == [{"y": value} for value in right]


@pytest.mark.parametrize(
    ("body", "options", "right"),
    [
        (b"b,a\n1,2\n", {}, [12]),
        (b"b,a\n1,2\n", {"header": "present"}, [12]),
        (b"1,2\n3,4\n", {"header": "absent"}, [21, 43]),
        (b"1,2\n3,4\n", {}, [21, 43]),
    ],
)
def test_the_models_own_names_are_a_header(
    tmp_path: Path, body: bytes, options: dict[str, str], right: list[float]
) -> None:
    client = load_matrix(tmp_path / "named", columns=["a", "b"])
    assert client.inference(Rows.model_validate(Rows.read_raw(body, options))) == [
        {"y": each} for each in right
    ]


@pytest.mark.parametrize("body", [b"c,d\n1,2\n", b"a,a\n1,2\n", b"a\n1\n", b"a,b\n"])
def test_a_header_with_other_names_is_refused(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(WrongPayload):
        client = load_matrix(tmp_path / "named", columns=["a", "b"])
        client.inference(Rows.model_validate(Rows.read_raw(body, {"header": "present"})))


def test_names_that_are_numbers_are_a_header_only_if_the_request_says_so(tmp_path: Path) -> None:
    client = load_matrix(tmp_path / "named", columns=["1", "0"])
    for options, right in (({}, [10, 65]), ({"header": "present"}, [56])):
        payload = Rows.model_validate(Rows.read_raw(b"0,1\n5,6\n", options))
        assert client.inference(payload) == [{"y": value} for value in right]


def test_a_header_is_present_or_absent() -> None:
    with pytest.raises(BadInput):
        Rows.read_raw(b"1\n", {"header": "perhaps"})


INTEGERS = {name: np.iinfo(kind) for name, kind in DTYPES.items() if "INT" in name}
FLOATS = {name: np.finfo(kind) for name, kind in DTYPES.items() if name.startswith("FP")}


@pytest.mark.parametrize("datatype", INTEGERS)
def test_an_integer_is_itself_or_refused(datatype: str) -> None:
    read, limits = reader_of(datatype), INTEGERS[datatype]
    for number in (int(limits.min), int(limits.max)):
        for form in (number, str(number), f" {number}.0 "):
            assert np.array([read(form)], DTYPES[datatype])[0] == number
    assert read(3.0) == 3
    beyond: list[Any] = [
        int(limits.min) - 1,
        int(limits.max) + 1,
        str(int(limits.max) + 1),
        1e19,
        -9.223372036854776e18,
    ]
    for value in (
        *beyond,
        2.0**53,
        1.5,
        "1.5",
        "1e3",
        "1_0",
        "٣",
        "9" * 5000,
        "",
        "x",
        None,
        True,
        False,
        [],
        {},
        [1],
    ):
        with pytest.raises((ValueError, OverflowError)):
            read(value)


@pytest.mark.parametrize("datatype", FLOATS)
def test_a_number_is_itself_or_refused(datatype: str) -> None:
    read, most = reader_of(datatype), float(FLOATS[datatype].max)
    good: tuple[Any, ...] = (most, -most, 0.5, 7, "7", " .5 ", "-1e-3", "5.")
    for value in good:
        assert np.isfinite(np.array([read(value)], DTYPES[datatype])).all()
        assert read(value) == float(value)
    beyond: list[Any] = [] if datatype == "FP64" else [most * 2, str(most * 2), 10**39]
    for value in (
        *beyond,
        10**400,
        "1e400",
        "nan",
        "inf",
        "Infinity",
        "1_0",
        "",
        "x",
        None,
        True,
        [],
        {},
        [1],
    ):
        with pytest.raises((ValueError, OverflowError)):
            read(value)


def test_a_truth_value_and_a_text_are_themselves_or_refused() -> None:
    read = reader_of("BOOL")
    assert [read(value) for value in (True, False, 1, 0, "True", "FALSE", "1", "0")] == [True, False] * 4
    wrong: tuple[Any, ...] = (7, -1, 1.0, "no", "", None, [], {})
    for value in wrong:
        with pytest.raises(ValueError, match="truth"):
            read(value)
    read = reader_of("BYTES")
    assert [read(value) for value in ("Rome", "", "Zürich")] == [b"Rome", b"", "Zürich".encode()]
    wrong = (None, True, 5, 1.5, {"a": 1}, ["a"])
    for value in wrong:
        with pytest.raises(ValueError, match="text"):
            read(value)
