"""Every row of the table names an existing test and says whether the feature works."""

from __future__ import annotations

import re

import pytest

from sm.settings import HERE

pytestmark = pytest.mark.core

TABLE = HERE / "tests" / "integration" / "reference" / "README.md"
TEST_REFERENCE = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def table_rows() -> list[list[str]]:
    """The cells of every row: number, feature, system, works, tests."""
    lines = [line for line in TABLE.read_text().splitlines() if re.match(r"\| \d", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_has_every_number_once_and_in_order() -> None:
    numbers = [int(re.match(r"\d+", row[0]).group()) for row in table_rows()]  # type: ignore[union-attr]
    assert sorted(set(numbers)) == list(range(1, 26))
    assert numbers == sorted(numbers)


def test_every_row_names_a_test_that_exists() -> None:
    for row in table_rows():
        assert len(row) == 5, row
        tests = TEST_REFERENCE.findall(row[4])
        assert tests, f"row {row[0]}, {row[1]}: no test is named"
        for file, test in tests:
            assert f"def {test}(" in (HERE / "tests" / file).read_text(), f"row {row[0]}: {file}::{test}"


def test_every_row_says_whether_it_works() -> None:
    for row in table_rows():
        assert re.match(r"yes|in part|not here", row[3]), f"row {row[0]}, {row[1]}: {row[3]}"
