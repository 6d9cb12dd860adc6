"""The commands of docs/start/from-the-official-container.md, run as written on an archive with one model."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.boxes import free_port
from tests.support.pages import code_blocks, run_commands
from tests.support.tritons import MODELS


def test_an_archive_of_the_official_container_is_served_unchanged(tmp_path: Path) -> None:
    MODELS["echo"].write(tmp_path / "echo")
    subprocess.run(["tar", "czf", "model.tar.gz", "echo"], cwd=tmp_path, check=True)
    page = code_blocks("start/from-the-official-container.md")
    (commands,) = [block for block in page if "model.tar.gz" in block]
    (answer,) = run_commands(commands, tmp_path, free_port())
    assert answer["model_name"] == "echo"
    assert [output["data"] for output in answer["outputs"]] == [[1, 2, 3]]
