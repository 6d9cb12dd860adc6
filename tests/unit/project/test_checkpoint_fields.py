"""The page of a checkpoint's fields has every field that the code has a word for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import sm.server.checkpoint
from sm.server.checkpoint.files import Field
from tests.support.checkpoint_fields import PAGE, TABLES, with_tables


def test_the_page_has_todays_fields() -> None:
    assert with_tables(PAGE.read_text()) == PAGE.read_text(), (
        "update it: python -m tests.support.checkpoint_fields"
    )


def test_no_table_of_the_code_is_missing_on_the_page() -> None:
    shown = [row for table in TABLES.values() for row in table.items()]
    (folder,) = map(type(PAGE), sm.server.checkpoint.__path__)
    found = 0
    for path in folder.glob("[!_]*.py"):
        for table in vars(import_module(f"sm.server.checkpoint.{path.stem}")).values():
            if (
                isinstance(table, Mapping)
                and table
                and all(isinstance(each, Field) for each in table.values())
            ):
                found += 1
                assert all(row in shown for row in table.items()), path
    assert found >= 5
