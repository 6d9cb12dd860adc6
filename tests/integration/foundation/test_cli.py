"""``sm`` imports only the command that is called, and says where to run a command that is not installed."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sm import cli
from sm.settings import HERE
from trireme_tools.commands import IMAGE

pytestmark = pytest.mark.core


@pytest.mark.parametrize("name", cli.installed())
def test_each_command_can_be_loaded_and_its_examples_are_calls_of_it(name: str) -> None:
    command = cli.installed()[name]
    cli.load(command.arguments)(argparse.ArgumentParser())
    assert callable(cli.load(command.run))
    for example in command.examples:
        words = shlex.split(example)
        assert words[0] == name
        cli.parser(words).parse_args(words)
    with pytest.raises(SystemExit):
        cli.parser([name]).parse_args([name, "--help"])


@pytest.mark.parametrize(
    ("words", "meant"),
    [(("chek-client", "pets"), "check-client?"), (("push", "cats", "--tto", "http://localhost"), "--to?")],
)
def test_a_typo_is_answered_with_what_was_probably_meant(words: tuple[str, ...], meant: str) -> None:
    completed = run_python("-m", "sm.cli", *words)
    assert (completed.returncode, meant in completed.stderr) == (2, True)


#: Runs each command of standard input where no boto3 can be imported.
NO_AWS = """
import contextlib, io, json, os, sys
sys.modules["boto3"] = sys.modules["botocore"] = None
from sm import cli
for words in json.load(sys.stdin):
    sys.argv, printed = ["sm", *words], io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            status = cli.main()
        except SystemExit as ended:
            status = ended.code
    assert status in (0, None) and (printed.getvalue() or os.path.isdir("chart")), (words, status)
"""


def test_what_calls_no_aws_needs_no_boto3(tmp_path: Path) -> None:
    line = {"time": "2026-01-01T00:00:00Z", "level": "info", "message": "started", "process": "serve"}
    (tmp_path / "box.jsonl").write_text(json.dumps(line) + "\n")
    formats = {
        "kubernetes": "",
        "kserve": "--model-data s3://models/pets/",
        "cloudformation": "",
        "terraform": "",
        "helm": "--out chart",
    }
    commands = [
        *([name, "--help"] for name in cli.installed()),
        ["iam", "pets", "--image", IMAGE],
        ["images", "--region", "eu-west-1"],
        ["cost"],
        ["logs", "--local", "--file", "box.jsonl"],
        *(
            shlex.split(
                f"template pets --format {name} --image {IMAGE} --instance-type ml.m5.xlarge {options}"
            )
            for name, options in formats.items()
        ),
    ]
    completed = run_python("-c", NO_AWS, folder=tmp_path, stdin=json.dumps(commands))
    assert completed.returncode == 0, completed.stderr


def run_python(*arguments: str, folder: Path = HERE, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, input=stdin, capture_output=True, text=True, check=False, timeout=60
    )
