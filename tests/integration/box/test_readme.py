"""The commands of the README, and for those who come from the official container, work as written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.boxes import RunningBox, free_port
from tests.support.pages import README, code_block, curl_commands, run_commands
from tests.support.tritons import MODELS


def run(command: list[str], port: int) -> str:
    arguments = [re.sub(r"localhost:\d+", f"127.0.0.1:{port}", word) for word in command]
    return subprocess.run(arguments, cwd=HERE, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("command", [curl for curl in curl_commands(README) if "hello" not in curl])
def test_each_curl_command_of_the_readme_works_as_written(box: RunningBox, command: str) -> None:
    assert "result" in json.loads(run(["bash", "-c", command], box.port))


def test_the_readmes_boto3_program_works_as_written(box: RunningBox) -> None:
    program = code_block(README, "python", "import boto3")
    assert "Egyptian" in run([sys.executable, "-c", program], box.port)


def test_an_archive_of_the_official_container_is_served_unchanged(tmp_path: Path) -> None:
    MODELS["echo"].write(tmp_path / "echo")
    subprocess.run(["tar", "czf", "model.tar.gz", "echo"], cwd=tmp_path, check=True)
    commands = code_block("start/from-the-official-container.md", "sh", "model.tar.gz")
    (answer,) = run_commands(commands, tmp_path, free_port())
    assert (answer["model_name"], answer["outputs"][0]["data"]) == ("echo", [1, 2, 3])
