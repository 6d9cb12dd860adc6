"""The three pipelines of docs/clients/pipelines.md, run as written, give the answer that the page shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm.tools.golden import differences
from tests.support.boxes import free_port
from tests.support.pages import blocks, run

PAGE = "clients/pipelines.md"

Ran = tuple[Path, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The folder where the page's commands have run, and the answers."""
    folder = tmp_path_factory.mktemp("page")
    return folder, run("\n".join(blocks(PAGE)), folder, free_port())


def test_all_three_ways_give_the_answer_of_the_page(ran: Ran) -> None:
    said = [json.loads(line) for line in blocks(PAGE, "json")[0].splitlines()]
    assert list(differences(ran[1], said)) == []


def test_the_pages_flowchart_is_what_the_command_writes(ran: Ran) -> None:
    assert (ran[0] / "pipeline.mmd").read_text() == blocks(PAGE, "mermaid")[0]
