"""Every command of docs/clients/recipes.md, run as written; the answers are those that the page shows."""

from __future__ import annotations

import json
from pathlib import Path

from sm.settings import HERE
from sm.tools.golden import differences
from tests.support.boxes import free_port
from tests.support.pages import blocks, run

PAGE = "clients/recipes.md"


def test_the_recipes_are_built_and_served_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(HERE / ".venv")
    answers = run("\n".join(blocks(PAGE)), tmp_path, free_port())
    expected = [json.loads(line) for line in blocks(PAGE, "json")[0].splitlines()]
    assert len(expected) == 4
    assert list(differences(answers, expected)) == []
