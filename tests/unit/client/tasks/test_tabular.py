"""The tabular task reads rows as JSON and CSV, with the names and types of the model's inputs."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm.client.base import TensorClient
from sm.errors import BadInput, StartError, WrongPayload
from tests.support.onnx_graphs import write_graph
from tests.support.task_models import ask, load_task
from trireme_extensions.tasks.tabular import DTYPES, Rows, reader_of

PEOPLE = """(int64[b,1] age, float[b,1] income) => (float[b,1] sum, int64[b,1] same) {
    years = Cast<to = 1>(age)
    sum = Add(years, income)
    same = Identity(age)
}"""


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> TensorClient:
    """A model with an input for each column: age INT64, income FP32. It gives their sum and the older age."""
    folder = tmp_path_factory.mktemp("model") / "people"
    write_graph(folder / "model.onnx", PEOPLE)
    return load_task(folder, task="tabular")


def load_matrix(folder: Path, **options: Any) -> TensorClient:
    """A model with one input of two columns, the second of which counts ten times."""
    matrix = "(float[b,2] X) => (float[b,1] y) <float[2,1] w = {1, 10}> { y = MatMul(X, w) }"
    write_graph(folder / "model.onnx", matrix)
    return load_task(folder, task="tabular", **options)


@pytest.mark.parametrize(
    "rows",
    [
        [{"age": 31, "income": 52000}, {"income": 18000, "age": 64}],
        [[31, 52000], [64, 18000]],
        [["31", " 5.2e4 "], ["64", "18000.000000000000000001"]],
        Rows.fields_of_raw(b"age,income\n31,52000\n64,18000\n")["rows"],
        Rows.fields_of_raw(b"income,age\r\n52000,31\r\n18000,64\r\n")["rows"],
        Rows.fields_of_raw(b"31,52000\n64,18000")["rows"],
    ],
)
def test_rows_of_every_form_get_the_same_answer(people: TensorClient, rows: Any) -> None:
    assert ask(people, rows=rows) == [{"sum": 52031, "same": 31}, {"sum": 18064, "same": 64}]


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([{"age": 31}], "income"),
        ([{"age": 31, "income": 1, "size": 2}], "size"),
        ([[31, 1], [31]], r"rows\[1\]"),
        ([[31, "much"]], "income"),
        ([[None, 1]], "age"),
        ([["", 1]], "age"),
        ([[31.5, 1]], "age"),
        ([[10**400, 1]], "age"),
        ([["age", "income"]], "header"),
        ([[31, 1], [{"a": 1}, 1]], r"rows\[1\].*age"),
        ([[[31], 1]], r"rows\[0\].*age"),
        ([["age", "income"], [31, 1, 5]], r"rows\[1\]"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_its_place(
    people: TensorClient, rows: Any, named: str
) -> None:
    with pytest.raises(WrongPayload, match=named):
        ask(people, rows=rows)


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=6)


@given(
    st.lists(st.lists(CELLS, min_size=1, max_size=4), max_size=4),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "\ufeff"]),
)
@settings(max_examples=60)
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


PRESENT, ABSENT = {"header": "present"}, {"header": "absent"}


@pytest.mark.parametrize(
    ("columns", "body", "options", "expected"),
    [
        # Names that are invented, or numbers, are a header only if the request says so.
        (None, b"1,0\n0,1\n", {}, [1, 10]),
        (None, b"1,0\n5,6\n", ABSENT, [1, 65]),
        (None, b"0,1\n5,6\n", PRESENT, [65]),
        (None, b"a,b\n5,6\n", {"header": "Present"}, [65]),
        (["1", "0"], b"0,1\n5,6\n", {}, [10, 65]),
        (["1", "0"], b"0,1\n5,6\n", PRESENT, [56]),
        # The model's own names are one.
        (["a", "b"], b"b,a\n1,2\n", {}, [12]),
        (["a", "b"], b"b,a\n1,2\n", PRESENT, [12]),
        (["a", "b"], b"1,2\n3,4\n", ABSENT, [21, 43]),
        (["a", "b"], b"c,d\n1,2\n", PRESENT, WrongPayload),
        (["a", "b"], b"a,a\n1,2\n", PRESENT, WrongPayload),
        (["a", "b"], b"a\n1\n", PRESENT, WrongPayload),
        (["a", "b"], b"a,b\n", PRESENT, WrongPayload),
        (None, b"1,2\n", {"header": "perhaps"}, BadInput),
    ],
)
def test_the_first_row_is_a_header_where_it_names_the_columns(
    tmp_path: Path, columns: list[str] | None, body: bytes, options: dict[str, str], expected: Any
) -> None:
    client = load_matrix(tmp_path / "model", **({"columns": columns} if columns else {}))
    if isinstance(expected, type):
        with pytest.raises(expected):
            client.inference(Rows.model_validate(Rows.read_raw(body, options)))
        return
    answer = client.inference(Rows.model_validate(Rows.read_raw(body, options)))
    assert answer == [{"y": value} for value in expected]


def test_the_task_file_names_the_columns_of_one_input(tmp_path: Path) -> None:
    assert ask(load_matrix(tmp_path / "people", columns=["a", "b"]), rows=[{"b": 2, "a": 1}]) == [{"y": 21}]
    with pytest.raises(StartError, match=r"task\.json"):
        load_matrix(tmp_path / "people", columns=["a", "b", "c"])


MISSING: tuple[Any, ...] = ("", None, "nan")
NO_NUMBERS: list[Any] = ["1_0", "", "x", None, True, [], {}, [1], 10**400, "1e400", "nan", "inf"]


@pytest.mark.parametrize("datatype", [name for name in DTYPES if "INT" in name])
def test_an_integer_is_itself_or_refused(datatype: str) -> None:
    read, limits = reader_of(datatype), np.iinfo(DTYPES[datatype])
    for number in (int(limits.min), int(limits.max)):
        for form in (number, str(number), f" {number}.0 "):
            assert np.array([read(form)], DTYPES[datatype])[0] == number
    assert read(3.0) == 3
    beyond = [int(limits.min) - 1, int(limits.max) + 1, str(int(limits.max) + 1), 1e19, -9.223372036854776e18]
    for value in (*beyond, *NO_NUMBERS, 2.0**53, 1.5, "1.5", "1e3", "٣", "9" * 5000):
        with pytest.raises((ValueError, OverflowError)):
            read(value)


@pytest.mark.parametrize("datatype", [name for name in DTYPES if name.startswith("FP")])
def test_a_number_is_itself_or_refused(datatype: str) -> None:
    read, most = reader_of(datatype), float(np.finfo(DTYPES[datatype]).max)
    good: list[Any] = [most, -most, 0.5, 7, "7", " .5 ", "-1e-3", "5."]
    for value in good:
        assert np.isfinite(np.array([read(value)], DTYPES[datatype])).all()
        assert read(value) == float(value)
    beyond: list[Any] = [] if datatype == "FP64" else [most * 2, str(most * 2), 10**39]
    for value in (*beyond, *NO_NUMBERS, "Infinity", "NA", float("inf")):
        if value in MISSING:
            assert math.isnan(read(value))
            continue
        with pytest.raises((ValueError, OverflowError)):
            read(value)
    assert all(math.isnan(read(value)) for value in (" ", "NaN", math.nan, np.nan))


NO_TRUTHS: list[Any] = [7, -1, 1.0, "no", "", None, [], {}]
NO_TEXTS: list[Any] = [None, True, 5, 1.5, {"a": 1}, ["a"]]


@pytest.mark.parametrize(
    ("datatype", "right", "read", "wrong"),
    [
        ("BOOL", [True, 1, "True", "1"], [True] * 4, NO_TRUTHS),
        ("BOOL", [False, 0, "FALSE"], [False] * 3, NO_TRUTHS),
        ("BYTES", ["Rome", "", "ü"], [b"Rome", b"", "ü".encode()], NO_TEXTS),
    ],
)
def test_a_truth_value_and_a_text_are_themselves_or_refused(
    datatype: str, right: list[Any], read: list[object], wrong: list[Any]
) -> None:
    reader = reader_of(datatype)
    assert [reader(value) for value in right] == read
    for value in wrong:
        with pytest.raises(ValueError, match=r"\b(truth|text)"):
            reader(value)
