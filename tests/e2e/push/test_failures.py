"""Each failure of a push is one sentence with a next step, before anything is built."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.aws import refusing_aws
from tests.support.push_checkout import Checkout

PAGE = HERE / "docs" / "deploy" / "push.md"


@pytest.fixture
def engine(checkout: Checkout, tmp_path: Path) -> Checkout:
    """A clone whose engine answers `info`; nothing else is asked of it before AWS has answered."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "engine").write_text('#!/bin/sh\n[ "$1" = info ]\n')
    (tools / "engine").chmod(0o755)
    checkout.env |= {"DOCKER": str(tools / "engine"), "AWS_REGION": "eu-west-1"}
    return checkout


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


def test_no_credentials(engine: Checkout) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del engine.env[name]
    assert "no AWS credentials: run 'aws configure' or 'aws sso login'" in sentence(engine.push())


def test_a_profile_that_is_not_there(engine: Checkout) -> None:
    assert "set AWS_PROFILE" in sentence(engine.push(AWS_PROFILE="elsewhere"))


def test_no_engine(checkout: Checkout) -> None:
    said = sentence(checkout.push("--region", "eu-west-1", DOCKER="no-such-engine"))
    assert "no 'no-such-engine' here: install Docker" in said
    assert "or Podman" in said


def test_an_engine_that_is_not_started(checkout: Checkout) -> None:
    assert "start it" in sentence(checkout.push("--region", "eu-west-1", DOCKER="false"))


@pytest.mark.parametrize(
    ("missing", "step"), [("aws", "install the AWS command line"), ("curl", "apt-get install curl")]
)
def test_a_tool_that_is_not_installed(engine: Checkout, tmp_path: Path, missing: str, step: str) -> None:
    few = tmp_path / "few"
    few.mkdir()
    for tool in {"bash", "env", "dirname", "git", "sed", "aws", "curl"} - {missing}:
        found = shutil.which(tool, path=engine.env["PATH"])
        assert found, tool
        (few / tool).symlink_to(found)
    said = sentence(engine.push(PATH=str(few)))
    assert f"no '{missing}' here" in said and step in said


def test_no_region(engine: Checkout) -> None:
    del engine.env["AWS_REGION"]
    assert "no Region is set: name one with --region" in sentence(engine.push())


@pytest.mark.parametrize("region", ["eu-nowhere-9", "Ireland", "eu_west_1"])
def test_no_such_region(engine: Checkout, region: str) -> None:
    # The aws command line says the same of a closed port and of a name that no Region has.
    said = sentence(engine.push("--region", region))
    assert f"there is no Region '{region}'" in said
    assert "check the spelling" in said


@pytest.mark.parametrize(
    ("code", "step"),
    [
        ("ExpiredToken", "have expired: get new ones"),
        ("InvalidClientTokenId", "a Region of China or GovCloud wants an account of its own"),
        ("AccessDenied", "docs/deploy/push.md lists the permissions. AWS says: An error occurred"),
        ("Throttling", "'aws sts get-caller-identity' failed in eu-west-1, and nothing was pushed there"),
    ],
)
def test_what_a_refusing_fake_aws_says_becomes_a_next_step(engine: Checkout, code: str, step: str) -> None:
    with refusing_aws(code, "no") as address:
        assert step in sentence(engine.push(AWS_ENDPOINT_URL=f"http://{address}"))


def test_no_commit(checkout: Checkout) -> None:
    subprocess.run(["rm", "-rf", ".git"], cwd=checkout.folder, check=True)
    assert "run this in a clone" in sentence(checkout.push("--region", "eu-west-1", "--dry-run"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-t", "a/b"], "'a/b' cannot be a tag"),
        (["--target", "tpu"], "there is no target 'tpu': use gpu or cpu"),
        (["--platform", "amd64"], "use one like linux/amd64"),
    ],
)
def test_a_value_that_cannot_be_used(checkout: Checkout, options: list[str], said: str) -> None:
    assert said in sentence(checkout.push(*options))


@pytest.mark.parametrize("options", [["--tag", "x"], ["-t"], ["--region", "--dry-run"], ["two", "names"]])
def test_wrong_usage_shows_the_right_one(checkout: Checkout, options: list[str]) -> None:
    done = checkout.push(*options)
    assert done.returncode == 2
    assert "usage: ./build_and_push.sh" in done.stderr


def test_every_option_and_variable_is_on_its_page(checkout: Checkout) -> None:
    words = {word.strip("[].,") for word in checkout.push("--help").stdout.split()}
    options = {word for word in words if word.startswith("-")}
    assert options >= {"-t", "--region", "--dry-run"}
    for word in (*options, "DOCKER", "REGISTRY", "AWS_PROFILE", "AWS_REGION", "AWS_ENDPOINT_URL"):
        assert f"`{word}" in PAGE.read_text(), word


def test_every_sentence_is_on_its_page_with_the_next_step() -> None:
    script = (HERE / "build_and_push.sh").read_text()
    ends = re.findall(r"\bdie \"(.*)", script)
    rows = [row.split("|") for row in PAGE.read_text().splitlines() if row.startswith("| “")]
    said = [piece for row in rows for piece in re.findall("“(.+?)”", row[1])]
    assert [text for text in said if text not in script] == []
    assert [end for end in ends if not any(text in end for text in said)] == []
    assert all(row[2].strip() for row in rows)
