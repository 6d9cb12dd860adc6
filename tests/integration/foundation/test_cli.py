"""``sm`` loads only the command that is called, and says where a command is that this image has not."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sm import cli
from sm.settings import HERE


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_its_help_its_arguments_and_a_function(name: str) -> None:
    command = cli.COMMANDS[name]
    assert command.is_shipped
    assert command.help.endswith(".")
    cli.load(command.arguments)(argparse.ArgumentParser())
    assert callable(cli.load(command.run))
    assert cli.parser([name]).format_help().count(command.help.split()[0])


@pytest.mark.parametrize("word", ["serve", "--help", "no-such-command"])
def test_other_commands_are_not_imported(word: str) -> None:
    code = (
        "import contextlib, sys; from sm import cli\n"
        f"with contextlib.suppress(SystemExit): cli.parser([{word!r}]).parse_args([{word!r}])\n"
        "print([name for name in sys.modules if name.startswith(('sm.', 'boto3', 'numpy')) and name != 'sm.errors'])"
    )
    completed = run("-c", code)
    assert completed.stdout.splitlines()[-1] == "['sm.cli']", completed.stderr


@pytest.fixture(scope="module")
def image_without_deploy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``sm/`` as an image has it that leaves ``sm/tools/deploy`` and ``sm/tools/logs`` out."""
    folder = tmp_path_factory.mktemp("image")
    shutil.copytree(
        HERE / "sm", folder / "sm", ignore=shutil.ignore_patterns("deploy", "logs", "__pycache__")
    )
    return folder


def test_a_command_that_the_image_has_not_is_one_sentence_with_the_place_to_run_it(
    image_without_deploy: Path,
) -> None:
    completed = run("-m", "sm.cli", "deploy", "ships", folder=image_without_deploy)
    assert completed.returncode == 1
    assert completed.stdout == ""
    assert completed.stderr == f"sm: 'sm deploy' is not in this image. {cli.DEVELOPER_MACHINE}\n"


def test_the_help_of_an_image_names_what_it_has_not(image_without_deploy: Path) -> None:
    completed = run("-m", "sm.cli", "--help", folder=image_without_deploy)
    epilog = " ".join(completed.stdout.split())
    assert f"Not in this image: deploy, status, logs, delete, images. {cli.DEVELOPER_MACHINE}" in epilog
    assert "Make or update a SageMaker endpoint" not in completed.stdout


def run(*words: str, folder: Path = HERE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
