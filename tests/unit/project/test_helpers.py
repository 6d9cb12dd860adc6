"""Tests import helpers from ``tests/support``, never from a conftest or from another test."""

from __future__ import annotations

import re

from sm.settings import HERE

FORBIDDEN = re.compile(r"^\s*from (?:\S*\.)?(?:conftest|test_\w+) import", re.M)


def test_nothing_imports_from_a_conftest_or_a_test() -> None:
    assert FORBIDDEN.search("from tests.unit.conftest import x")
    assert [path for path in (HERE / "tests").rglob("*.py") if FORBIDDEN.search(path.read_text())] == []
