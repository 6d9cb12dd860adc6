"""Tests import helpers from ``tests/support``, never from a conftest or from another test."""

from __future__ import annotations

import ast

from sm.settings import HERE


def test_nothing_imports_from_a_conftest_or_a_test() -> None:
    forbidden_imports = [
        f"{path.relative_to(HERE)}:{node.lineno}: {node.module}"
        for path in sorted((HERE / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").rpartition(".")[2].startswith(("test_", "conftest"))
    ]
    assert forbidden_imports == []
