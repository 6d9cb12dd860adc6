"""``sm`` imports only the command that is called, and says where to run a command that the image lacks."""

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
def test_each_command_has_help_arguments_and_a_function(name: str) -> None:
    command = cli.COMMANDS[name]
    assert command.is_shipped
    assert command.help.endswith(".")
    cli.load(command.arguments)(argparse.ArgumentParser())
    assert callable(cli.load(command.run))
    assert cli.parser([name]).format_help().count(command.help.split()[0])


@pytest.mark.parametrize("word", ["serve", "--help", "no-such-command"])
def test_only_the_called_command_is_imported(word: str) -> None:
    code = (
        "import contextlib, sys; from sm import cli\n"
        f"with contextlib.suppress(SystemExit): cli.parser([{word!r}]).parse_args([{word!r}])\n"
        "print([name for name in sys.modules if name.startswith(('sm.', 'boto3', 'numpy')) and name != 'sm.errors'])"
    )
    completed = run_python("-c", code)
    assert completed.stdout.splitlines()[-1] == "['sm.cli']", completed.stderr


@pytest.fixture(scope="module")
def image_without_deploy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of ``sm/`` without ``sm/tools/deploy`` and ``sm/tools/logs``, as in an image."""
    folder = tmp_path_factory.mktemp("image")
    shutil.copytree(
        HERE / "sm", folder / "sm", ignore=shutil.ignore_patterns("deploy", "logs", "__pycache__")
    )
    return folder


def test_a_command_that_the_image_lacks_is_one_sentence_with_the_place_to_run_it(
    image_without_deploy: Path,
) -> None:
    completed = run_python("-m", "sm.cli", "deploy", "ships", folder=image_without_deploy)
    assert completed.returncode == 1
    assert completed.stdout == ""
    assert completed.stderr == f"sm: 'sm deploy' is not in this image. {cli.DEVELOPER_MACHINE}\n"


def test_the_help_of_an_image_names_the_commands_that_it_lacks(image_without_deploy: Path) -> None:
    completed = run_python("-m", "sm.cli", "--help", folder=image_without_deploy)
    epilog = " ".join(completed.stdout.split())
    assert f"Not in this image: deploy, status, logs, delete, images. {cli.DEVELOPER_MACHINE}" in epilog
    assert "Make or update a SageMaker endpoint" not in completed.stdout


def run_python(*arguments: str, folder: Path = HERE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
