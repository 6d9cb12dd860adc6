"""``sm`` imports only the command that is called, and says where to run a command that the image lacks."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sm import cli
from sm.settings import HERE

pytestmark = pytest.mark.core


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_help_arguments_and_a_function(name: str) -> None:
    command = cli.COMMANDS[name]
    assert command.is_shipped
    assert command.help.endswith(".")
    cli.load(command.arguments)(argparse.ArgumentParser())
    assert callable(cli.load(command.run))
    assert " ".join(command.help.split()[:3]) in cli.parser([name]).format_help() or command.same_as


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_examples_of_each_command_are_calls_of_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for example in cli.COMMANDS[name].examples:
        words = shlex.split(example)
        assert words[0] == name
        cli.parser(words).parse_args(words)
    with pytest.raises(SystemExit):
        cli.parser([name]).parse_args([name, "--help"])
    assert all(
        f"  sm {example}\n" in capsys.readouterr().out + "\n" for example in cli.COMMANDS[name].examples[:1]
    )


def test_the_help_lists_each_command_in_one_of_four_groups() -> None:
    text = cli.parser([]).format_help()
    assert len(cli.GROUPS) == 4
    for title, group in cli.GROUPS.items():
        listed = [name for name, command in group.items() if not command.same_as]
        assert re.findall(r"^  (\S+) ", text.partition(f"{title}:\n")[2].partition("\n\n")[0], re.M) == listed
    assert re.findall(r"Old names?: (.*?)\.\)", " ".join(text.split())) == ["'test'", "'demo', 'prepare'"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("chek-client", "pets"), "there is no command 'chek-client'; did you mean check-client?"),
        (("nothing",), "there is no command 'nothing'. 'sm --help' lists them."),
        (
            ("top", "--urll", "http://localhost"),
            "unrecognized arguments: --urll http://localhost; did you mean --url?",
        ),
    ],
)
def test_a_typo_is_answered_with_what_was_probably_meant(words: tuple[str, ...], sentence: str) -> None:
    completed = run_python("-m", "sm.cli", *words)
    assert completed.returncode == 2
    assert sentence in completed.stderr
    assert "Traceback" not in completed.stderr


NO_AWS = "import sys; sys.modules['boto3'] = sys.modules['botocore'] = None; from sm import cli; "


@pytest.mark.parametrize(
    "words",
    [
        *([name, "--help"] for name in cli.COMMANDS),
        *(
            shlex.split(
                f"template pets --format {name} --image {cli.IMAGE} --instance-type ml.m5.xlarge {options}"
            )
            for name, options in {
                "kubernetes": "",
                "kserve": "--model-data s3://models/pets/",
                "helm": "--out chart",
                "cloudformation": "",
                "terraform": "",
            }.items()
        ),
        ["iam", "pets", "--image", cli.IMAGE],
        ["images", "--region", "eu-west-1"],
        ["cost"],
        ["logs", "--local", "--file", "box.jsonl"],
    ],
    ids=" ".join,
)
def test_what_calls_no_aws_needs_no_boto3(words: list[str], tmp_path: Path) -> None:
    line = {"time": "2026-01-01T00:00:00Z", "level": "info", "message": "started", "process": "serve"}
    (tmp_path / "box.jsonl").write_text(json.dumps(line) + "\n")
    completed = run_python("-c", NO_AWS + "sys.exit(cli.main())", *words, folder=tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout or (tmp_path / "chart").is_dir()


def test_what_calls_aws_says_how_to_install_boto3() -> None:
    completed = run_python("-c", NO_AWS + "sys.exit(cli.main())", "status", "pets")
    assert completed.returncode == 1
    assert "trireme-serving[deploy]" in completed.stderr


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
    assert f"Not in this image: logs, deploy, status, delete, images. {cli.DEVELOPER_MACHINE}" in epilog
    assert "Make or update a SageMaker endpoint" not in completed.stdout


def test_an_image_without_models_says_what_the_user_of_a_container_can_do(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("prepare_command.py", "__pycache__")
    shutil.copytree(HERE / "sm", tmp_path / "sm", ignore=ignored)
    code = "import sys; from sm.server.supervisor.start import main; sys.exit(main(['serve']))"
    completed = run_python("-c", code, folder=tmp_path)
    assert completed.returncode == 1
    log = completed.stdout + completed.stderr
    assert "There is no model in" in log
    assert "docker run -v REPOSITORY:/opt/ml/model:ro" in log
    assert "MODELS=demo" in log
    assert "make serve" not in log


def run_python(*arguments: str, folder: Path = HERE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
