"""What a client author imports from ``sm.client``."""

from __future__ import annotations

import ast
from pathlib import Path

import sm.client


def test_a_type_checker_sees_each_name_where_it_is() -> None:
    source = ast.parse(Path(str(sm.client.__file__)).read_text())
    seen = {
        alias.asname: f"{statement.module}.{alias.name}"
        for statement in ast.walk(source)
        if isinstance(statement, ast.ImportFrom) and str(statement.module).startswith("sm.client.")
        for alias in statement.names
    }
    modules = {
        name: f"sm.client.{module}" for module, names in sm.client._MODULES.items() for name in names.split()
    }
    assert seen == {name: f"{module}.{name}" for name, module in modules.items()}
    assert all(getattr(sm.client, name) is not None for name in sm.client.__all__)
