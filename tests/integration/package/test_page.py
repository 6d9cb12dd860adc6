"""The commands of docs/deploy/packaging.md, run as written on a repository with one model."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.boxes import free_port
from tests.support.pages import code_blocks, run_commands
from tests.support.tritons import MODELS

PACK, SERVE, ENVIRONMENT = code_blocks("deploy/packaging.md")


@pytest.mark.exhaustive
def test_the_pages_commands_write_the_archives_it_names(tmp_path: Path) -> None:
    MODELS["echo"].write(tmp_path / "model" / "echo")
    (tmp_path / "out").mkdir()
    run_commands(PACK, tmp_path, free_port())
    assert (tmp_path / "model.tar.gz").read_bytes() == (tmp_path / "out" / "model.tar.gz").read_bytes()
    archives = {path.name for path in (tmp_path / "archives").iterdir()}
    copies = {f"echo-{number}.tar.gz" for number in range(1, 21)}
    numbered_from_0 = {f"echo_{number}.tar.gz" for number in range(20)}
    assert archives == {"echo.tar.gz"} | copies | numbered_from_0
    unpack_command, serve_command = SERVE.strip().splitlines()
    run_commands(unpack_command, tmp_path, free_port())
    assert (tmp_path / "served" / "echo" / "config.pbtxt").is_file()
    # The test of docs/start/bring-your-model.md runs the rest.
    assert serve_command.strip() == "TRIREME_MODEL_REPOSITORY=served sm serve"


@pytest.mark.exhaustive
def test_the_pages_environment_is_installed_in_its_models_folder(tmp_path: Path) -> None:
    (tmp_path / "model" / "closest").mkdir(parents=True)
    run_commands(ENVIRONMENT, tmp_path, free_port())
    python = tmp_path / "model" / "closest" / "env" / "bin" / "python3"
    subprocess.run([python, "-c", "import rapidfuzz"], check=True)
