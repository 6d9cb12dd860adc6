"""The three pipelines of docs/clients/pipelines.md, run as written, give the answers that the page shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm.commands.golden import differences
from tests.support.boxes import free_port
from tests.support.pages import code_blocks, run_commands

PAGE = "clients/pipelines.md"

FolderAndAnswers = tuple[Path, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def folder_and_answers(tmp_path_factory: pytest.TempPathFactory) -> FolderAndAnswers:
    """Run the page's commands; return their folder and the answers that they printed."""
    folder = tmp_path_factory.mktemp("page")
    return folder, run_commands("\n".join(code_blocks(PAGE)), folder, free_port())


@pytest.mark.exhaustive
def test_all_three_pipelines_give_the_answers_of_the_page(folder_and_answers: FolderAndAnswers) -> None:
    expected = [json.loads(line) for line in code_blocks(PAGE, "json")[0].splitlines()]
    assert list(differences(folder_and_answers[1], expected)) == []


@pytest.mark.exhaustive
def test_the_pages_flowchart_is_the_one_that_the_command_writes(folder_and_answers: FolderAndAnswers) -> None:
    assert (folder_and_answers[0] / "pipeline.mmd").read_text() == code_blocks(PAGE, "mermaid")[0]
