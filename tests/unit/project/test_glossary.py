"""The words that the glossary rejects are the names of nothing in ``sm/``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from sm.settings import HERE

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (HERE / "docs" / "glossary.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| term")
]
REJECTED = {word.strip(): row[0] for row in ROWS for word in row[2].split(",") if word.strip()}


def definitions(file: Path) -> Iterator[str]:
    """Names of classes and functions that a file defines."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name


@cache
def files_by_name() -> dict[str, list[str]]:
    """The files of ``sm/`` by the names that they define. Each file is parsed once for all words."""
    files: dict[str, list[str]] = {}
    for file in sorted((HERE / "sm").rglob("*.py")):
        for name in set(definitions(file)):
            files.setdefault(name, []).append(str(file))
    return files


def test_every_term_is_explained_once() -> None:
    terms = [row[0] for row in ROWS]
    assert len(terms) == len(set(terms)) > 30
    assert all(len(row) == 3 and row[1] for row in ROWS)


@pytest.mark.parametrize("word", sorted(REJECTED))
def test_nothing_is_named_by_a_rejected_word(word: str) -> None:
    assert word not in files_by_name(), f"the glossary says {REJECTED[word]!r}: {files_by_name()[word]}"


def test_a_rejected_word_is_a_name_that_python_allows() -> None:
    assert all(re.fullmatch(r"[A-Za-z_]\w*", word) for word in REJECTED)
