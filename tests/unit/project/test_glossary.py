"""Nothing in ``sm/`` is named by a word that the glossary rejects."""

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


def defined_names(file: Path) -> Iterator[str]:
    """Yield the names of the classes and functions that a file defines."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name


@cache
def files_by_name() -> dict[str, list[str]]:
    """Return the files of ``sm/`` by the names that they define. Cached, so that each file is parsed once."""
    files: dict[str, list[str]] = {}
    for file in sorted((HERE / "sm").rglob("*.py")):
        for name in set(defined_names(file)):
            files.setdefault(name, []).append(str(file))
    return files


def test_every_term_is_explained_once() -> None:
    terms = [row[0] for row in ROWS]
    assert len(terms) == len(set(terms)) > 30
    assert all(len(row) == 3 and row[1] for row in ROWS)


@pytest.mark.parametrize("word", sorted(REJECTED))
def test_nothing_is_named_by_a_rejected_word(word: str) -> None:
    assert word not in files_by_name(), f"the glossary says {REJECTED[word]!r}: {files_by_name()[word]}"


def test_every_rejected_word_could_be_a_python_name() -> None:
    assert all(re.fullmatch(r"[A-Za-z_]\w*", word) for word in REJECTED)
