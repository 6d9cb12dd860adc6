"""The three pipelines of docs/clients/pipelines.md, run as written, give what the page shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm.commands.golden import differences
from tests.support.boxes import free_port
from tests.support.pages import code_blocks, run_commands

PAGE = "clients/pipelines.md"


@pytest.mark.exhaustive
def test_all_three_pipelines_give_the_answers_and_the_flowchart_of_the_page(tmp_path: Path) -> None:
    answers = run_commands("\n".join(code_blocks(PAGE)), tmp_path, free_port())
    expected = [json.loads(line) for line in code_blocks(PAGE, "json")[0].splitlines()]
    assert list(differences(answers, expected)) == []
    assert (tmp_path / "pipeline.mmd").read_text() == code_blocks(PAGE, "mermaid")[0]
