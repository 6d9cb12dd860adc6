"""Whoever meets an error finds it on docs/run/troubleshooting.md: each ``code``, and each sentence of a start."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from chalicelib import failures as gateway_failures

from sm import errors
from sm.errors import TriremeError
from sm.settings import HERE

PAGE = (HERE / "docs" / "run" / "troubleshooting.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")]
#: What ends a start or is found by the inspection before it.
RAISED = ("StartError", "UnsuitableModel", "NameTaken", "Problem")
#: A sentence that is put together elsewhere has no words of its own where it is raised.
LEAST_WORDS = 8


def start_sentences() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The place, and the fixed parts of the sentence, of each error that the runtime can end a start with."""
    for file in sorted((HERE / "sm").rglob("*.py")):
        if "tools" in file.relative_to(HERE).parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in RAISED
                and node.args
            ):
                parts = fixed_parts(node.args[0])
                if any(len(part) >= LEAST_WORDS for part in parts):
                    yield f"{file.relative_to(HERE)}:{node.lineno}", parts


def fixed_parts(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Constant):
        return (str(node.value),)
    if isinstance(node, ast.JoinedStr):
        return tuple(str(part.value) for part in node.values if isinstance(part, ast.Constant))
    return ()


def plain(text: str) -> str:
    """Without what marks code, so that a sentence that quotes a command is found."""
    return re.sub(r"\s+", " ", text.replace("`", ""))


def is_told(parts: tuple[str, ...]) -> bool:
    """True if a row has a fixed part of the sentence, or its first clause."""
    clauses = [plain(clause).strip(" :;,.") for part in parts for clause in re.split(r"[:;.,] ", part)]
    return any(clause in plain(row) for clause in clauses if len(clause) >= LEAST_WORDS for row in ROWS)


@pytest.mark.parametrize(
    ("place", "parts"), list(start_sentences()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_start_that_fails_is_explained(place: str, parts: tuple[str, ...]) -> None:
    assert is_told(parts), f"{place}: docs/run/troubleshooting.md has no row for “{'…'.join(parts)}”"


def test_a_sentence_that_no_row_has_is_noticed() -> None:
    assert not is_told(("the moon is in the way of ", ": wait until it has passed."))


def codes() -> set[tuple[int, str]]:
    classes = [*vars(errors).values(), *vars(gateway_failures).values()]
    found = {kind for kind in classes if isinstance(kind, type) and issubclass(kind, TriremeError)}
    return {(kind.status, kind.code) for kind in found if kind is not errors.ChosenStatus}


@pytest.mark.parametrize(("status", "code"), sorted(codes()))
def test_a_code_is_explained_with_its_status(status: int, code: str) -> None:
    assert any(row.startswith(f"| {status} | `{code}` |") for row in ROWS)


def test_every_row_says_what_to_do() -> None:
    for row in ROWS:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert all(cells), row


def test_the_page_is_where_this_test_looks() -> None:
    assert Path(HERE, "docs", "run", "troubleshooting.md").stat().st_size > 10_000
