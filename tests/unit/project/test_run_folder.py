"""The page of the run folder has each file through which the box's processes talk, and the code opens no other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sm.run_state import Box, InRun
from sm.settings import HERE
from tests.support.run_folder import names_on_the_page

#: Where the folder itself is meant: gunicorn's own file, and what the children are told.
WHOLE = {"sm/run_state.py", "sm/server/plane.py", "sm/server/supervisor/processes.py"}


def uses_of_the_folder() -> Iterator[str]:
    """Yield the modules that use the attribute ``run`` of a box."""
    for folder in ("sm", "extensions/trireme_extensions"):
        for file in (HERE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if (
                    isinstance(node, ast.Attribute)
                    and node.attr == "run"
                    and "box" in ast.unparse(node.value)
                ):
                    yield str(file.relative_to(HERE))


def test_the_page_has_the_names_that_the_code_has_and_no_module_has_others() -> None:
    names = {each._name for each in vars(Box).values() if isinstance(each, InRun)}
    assert names_on_the_page() == names | {"models", "generation", "archives-removed"}
    assert set(uses_of_the_folder()) <= WHOLE
