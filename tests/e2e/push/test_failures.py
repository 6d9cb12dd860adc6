"""Each failure of a push is one line with a next step, before anything is built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.push.checkout import Checkout
from tests.support.aws import refusing_aws


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


#: Variables that are changed (empty: removed), options, and what is named.
MISTAKES = [
    ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "", "'aws configure'"),
    ({"AWS_PROFILE": "elsewhere"}, "", "AWS_PROFILE"),
    ({"DOCKER": "no-such-engine"}, "", "'no-such-engine'"),
    ({"DOCKER": "false"}, "", "'false'"),
    ({"AWS_REGION": ""}, "", "--region"),
    ({}, "-t a/b", "'a/b'"),
    ({}, "--target tpu", "'tpu'"),
    ({}, "--platform amd64", "linux/amd64"),
    # The aws command line says the same of a closed port and of a name that no Region has.
    ({}, "--region eu-nowhere-9", "'eu-nowhere-9'"),
]


@pytest.mark.parametrize(("variables", "options", "named"), MISTAKES)
def test_each_mistake_has_a_next_step(
    engine: Checkout, variables: dict[str, str], options: str, named: str
) -> None:
    engine.env = {name: value for name, value in {**engine.env, **variables}.items() if value}
    assert named in error_of(engine.push(*options.split()))


@pytest.mark.parametrize("missing", ["aws", "curl"])
def test_a_missing_tool_is_named(engine: Checkout, tmp_path: Path, missing: str) -> None:
    (tmp_path / "other-tools").mkdir()
    for tool in {"bash", "env", "dirname", "git", "sed", "aws", "curl"} - {missing}:
        program = shutil.which(tool, path=engine.env["PATH"])
        assert program, tool
        (tmp_path / "other-tools" / tool).symlink_to(program)
    assert f"'{missing}'" in error_of(engine.push(PATH=str(tmp_path / "other-tools")))


@pytest.mark.parametrize(
    ("code", "named"), [("ExpiredToken", "expired"), ("AccessDenied", "docs/deploy/push.md")]
)
def test_a_refusal_by_aws_has_a_next_step(engine: Checkout, code: str, named: str) -> None:
    with refusing_aws(code, "no") as address:
        assert named in error_of(engine.push(AWS_ENDPOINT_URL=f"http://{address}"))


def test_a_folder_without_a_commit_has_a_next_step(checkout: Checkout) -> None:
    shutil.rmtree(checkout.folder / ".git")
    assert "clone" in error_of(checkout.push("--region", "eu-west-1", "--dry-run"))
