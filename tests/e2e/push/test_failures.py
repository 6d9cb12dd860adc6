"""Each failure of a push is one sentence with a next step, before anything is built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.aws import refusing_aws
from tests.support.push_checkout import Checkout


@pytest.fixture
def engine(checkout: Checkout, tmp_path: Path) -> Checkout:
    """A clone with a fake engine that answers `info`, the only call before AWS has answered."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "engine").write_text('#!/bin/sh\n[ "$1" = info ]\n')
    (tools / "engine").chmod(0o755)
    checkout.env |= {"DOCKER": str(tools / "engine"), "AWS_REGION": "eu-west-1"}
    return checkout


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


#: Variables that are changed (None: removed), options, and what is said.
MISTAKES: list[tuple[dict[str, str | None], list[str], str]] = [
    ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, [], "'aws configure'"),
    ({"AWS_PROFILE": "elsewhere"}, [], "AWS_PROFILE"),
    ({"DOCKER": "no-such-engine"}, [], "'no-such-engine'"),
    ({"DOCKER": "false"}, [], "start it"),
    ({"AWS_REGION": None}, [], "--region"),
    ({}, ["-t", "a/b"], "'a/b'"),
    ({}, ["--target", "tpu"], "'tpu'"),
    ({}, ["--platform", "amd64"], "linux/amd64"),
]


@pytest.mark.parametrize(("variables", "options", "step"), MISTAKES)
def test_each_mistake_has_a_next_step(
    engine: Checkout, variables: dict[str, str | None], options: list[str], step: str
) -> None:
    for name, value in variables.items():
        if value is None:
            del engine.env[name]
        else:
            engine.env[name] = value
    assert step in error_of(engine.push(*options))


@pytest.mark.parametrize(
    ("missing", "step"), [("aws", "install the AWS command line"), ("curl", "apt-get install curl")]
)
def test_a_missing_tool_has_a_next_step(engine: Checkout, tmp_path: Path, missing: str, step: str) -> None:
    other_tools = tmp_path / "other-tools"
    other_tools.mkdir()
    for tool in {"bash", "env", "dirname", "git", "sed", "aws", "curl"} - {missing}:
        program = shutil.which(tool, path=engine.env["PATH"])
        assert program, tool
        (other_tools / tool).symlink_to(program)
    error = error_of(engine.push(PATH=str(other_tools)))
    assert f"no '{missing}' here" in error and step in error


@pytest.mark.parametrize("region", ["eu-nowhere-9", "Ireland", "eu_west_1"])
def test_an_unknown_region_has_a_next_step(engine: Checkout, region: str) -> None:
    # The aws command line says the same of a closed port and of a name that no Region has.
    error = error_of(engine.push("--region", region))
    assert f"'{region}'" in error


@pytest.mark.parametrize(
    ("code", "step"),
    [
        ("ExpiredToken", "expired"),
        ("InvalidClientTokenId", "GovCloud"),
        ("AccessDenied", "docs/deploy/push.md"),
        ("Throttling", "'aws sts get-caller-identity'"),
    ],
)
def test_each_refusal_by_aws_has_a_next_step(engine: Checkout, code: str, step: str) -> None:
    with refusing_aws(code, "no") as address:
        assert step in error_of(engine.push(AWS_ENDPOINT_URL=f"http://{address}"))


def test_a_folder_without_a_commit_has_a_next_step(checkout: Checkout) -> None:
    subprocess.run(["rm", "-rf", ".git"], cwd=checkout.folder, check=True)
    assert "clone" in error_of(checkout.push("--region", "eu-west-1", "--dry-run"))
