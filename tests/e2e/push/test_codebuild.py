"""``build_and_push.sh --codebuild``: a machine without an engine, an account whose builds run the project's buildspec.

The build runs the real script with Podman, and pushes to a real registry.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.push.checkout import Checkout, Laptop
from tests.e2e.push.test_push import documented_permissions, run_after_pull
from tests.integration.templates.linting import cfn_lint
from tests.support.aws import REGION
from tests.support.aws_proxy import json_error
from tests.support.boxes import wait_until
from tests.support.containers import podman
from trireme_tools.codebuild import source
from trireme_tools.codebuild.project import Names

ADDRESS = re.compile(rf"123456789012\.dkr\.ecr\.{REGION}\.amazonaws\.com/(\S+):(\S+)@(sha256:[0-9a-f]{{64}})")


def addresses(done: subprocess.CompletedProcess[str]) -> list[tuple[str, ...]]:
    """Return name, tag and digest of each line of a push."""
    assert done.returncode == 0, done.stderr
    found = [ADDRESS.fullmatch(line) for line in done.stdout.splitlines()]
    return [each.groups() for each in found if each]


def failed(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    return done.stderr.splitlines()[-1]


def test_an_image_is_built_in_the_account_and_all_but_it_is_removed(laptop: Laptop, registry: str) -> None:
    before = laptop.resources()
    assert "--yes" in failed(laptop.push()), "nobody answers"
    assert laptop.resources() == before
    done = laptop.push("--yes", "-t", "stable")
    first, second = addresses(done)
    tag = laptop.clone.tag
    assert first[:2] == ("trireme", tag) and second == ("trireme", "stable", first[2])
    assert run_after_pull(laptop.elsewhere, f"{registry}/trireme@{first[2]}") == "ldconfig"
    # Before the build it said what it costs, and all rights of the role.
    said, _, log = done.stderr.partition("\nbuild trireme-build-trireme:")
    assert "$0.02 a minute" in said and '"ecr:PutImage"' in said and "making the repository" in log
    (build,) = laptop.builds.builds.values()
    assert build["environment"]["privilegedMode"] and build["environment"]["type"] == "LINUX_CONTAINER"
    # The same again builds nothing, asks nothing and says the same.
    assert addresses(laptop.push("-t", "stable")) == [first, second] and len(laptop.builds.builds) == 1
    listed = laptop.delete()
    assert listed.returncode == 1 and "trireme-build-trireme" in listed.stdout
    removed = laptop.delete("--yes")
    assert removed.returncode == 0, removed.stderr
    after = laptop.resources()
    assert after.pop("repositories") == ["trireme"] and after.pop("buckets")
    assert all(after[kind] == before[kind] for kind in after), after
    assert laptop.delete("--yes").returncode == 1


def test_the_role_may_do_what_the_script_needs_and_nothing_else(laptop: Laptop) -> None:
    assert laptop.push("team/triton.v2", "--yes", "--dry-run").returncode == 0
    addresses(laptop.push("team/triton.v2", "--yes"))
    (role,) = laptop.resources()["roles"]
    iam = laptop.aws.client("iam")
    policy = iam.get_role_policy(RoleName=role, PolicyName="build")["PolicyDocument"]
    statements = {each["Sid"]: each for each in policy["Statement"]}
    pushing = {*statements["PushImage"]["Action"], *statements["SignInToRegistry"]["Action"]}
    assert pushing == {*documented_permissions()}
    assert statements["PushImage"]["Resource"] == [
        f"arn:aws:ecr:{REGION}:123456789012:repository/team/triton.v2"
    ]
    assert [sid for sid, each in statements.items() if each["Resource"] == "*"] == ["SignInToRegistry"]
    (project,) = laptop.resources()["projects"]
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{1,254}", project)
    assert statements["WriteLog"]["Resource"][0].endswith(f":log-group:/aws/codebuild/{project}")
    assert all(f"/{project}/" in key for key in laptop.resources()["objects"])


def test_a_dry_run_prints_the_calls_and_makes_none(laptop: Laptop) -> None:
    before = laptop.resources()
    done = laptop.push("--dry-run")
    assert done.returncode == 0 and laptop.resources() == before
    commands = [line.split()[1:3] for line in done.stdout.splitlines()]
    assert ["iam", "create-role"] in commands and ["codebuild", "start-build"] in commands
    assert laptop.builds.builds == {}
    # A build for each platform, on a machine of its kind.
    both = laptop.push("--dry-run", "--platform", "linux/arm64,linux/amd64").stdout
    assert both.count("ARM_CONTAINER") == 1 and both.count("start-build") == 2
    assert f"{laptop.clone.tag}-arm64" in both and f"{laptop.clone.tag}-amd64" in both
    laptop.aws.fixed_responses["StartBuild"] = json_error(
        400, "AccountLimitExceededException", "Cannot have more than 0 builds in queue for the account"
    )
    assert "more than 0 builds" in failed(laptop.push("--yes"))


@pytest.mark.exhaustive
def test_models_are_baked_in_as_a_local_build_would(laptop: Laptop, registry: str, tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "both" / "1").mkdir(parents=True)  # an ensemble's version, which is empty
    (models / "both" / "config.pbtxt").write_text('name: "both"')
    (models / "echo" / "1").mkdir(parents=True)
    (models / "echo" / "1" / "weights").write_bytes(bytes(1 << 16))
    laptop.clone.add_step(
        f'FROM scratch AS with-models\nLABEL {laptop.clone.label}\nCOPY program /\nCOPY --from=models . /models\nCMD ["/program"]'
    )
    laptop.clone.commit()
    options = ("--models", str(models))
    local = laptop.elsewhere.dry_run(*options)
    ((name, tag, digest),) = addresses(laptop.push("--yes", *options))
    assert any(f"{name}:{tag} " in line for line in local), "the tag of a local build"
    place = f"{registry}/trireme@{digest}"
    podman("pull", "--quiet", place, env=laptop.elsewhere.env)
    made = podman("create", place, env=laptop.elsewhere.env)
    listed = subprocess.run(f"podman export {made} | tar -t", shell=True, capture_output=True, text=True)
    podman("rm", made)
    below = {line.rstrip("/") for line in listed.stdout.splitlines() if line.startswith("models")}
    assert {"models/both/1", "models/echo/1/weights"} <= below and not any(".keep" in each for each in below)


def test_an_interrupted_command_leaves_the_build_and_the_next_finds_it(laptop: Laptop) -> None:
    laptop.builds.may_go_on.clear()
    # A shell that started these tests in its background has them ignore Ctrl-C.
    script = [str(laptop.clone.folder / "build_and_push.sh"), "--codebuild", "--yes"]
    command = ["/usr/bin/env", "--default-signal=INT", *script]
    with subprocess.Popen(
        command,
        env=laptop.clone.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        wait_until(lambda: bool(laptop.builds.builds), 60)
        time.sleep(1)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=200)
    assert running.returncode != 0 and out == "" and "goes on" in err
    laptop.builds.may_go_on.set()
    (line,) = addresses(laptop.push())
    assert line[1] == laptop.clone.tag and len(laptop.builds.builds) == 1


@pytest.mark.parametrize("step", ["COPY missing ."])
def test_a_failed_build_says_its_own_last_line_and_the_link(laptop: Laptop, step: str) -> None:
    laptop.clone.add_step(step)
    laptop.clone.commit()
    sentence = failed(laptop.push("--yes"))
    (build,) = laptop.builds.builds.values()
    assert "exit status 1" in sentence and "build_and_push.sh: the build failed" in sentence
    assert build["logs"]["deepLink"] in sentence
    # The reason is mended: another build.
    laptop.clone.git("revert", "--no-edit", "HEAD")
    assert addresses(laptop.push("--yes")) and len(laptop.builds.builds) == 2


def test_changes_without_a_commit_never_get_the_image_of_others(laptop: Laptop) -> None:
    laptop.clone.add_step("ENV A=1")
    ((_, tag, digest),) = addresses(laptop.push("--yes"))
    assert tag.endswith("-dirty")
    assert addresses(laptop.push()) == [("trireme", tag, digest)], "the same changes"
    laptop.clone.add_step("ENV A=2")
    assert "commit what you changed" in failed(laptop.push("--yes"))
    laptop.clone.commit()
    assert "choose another tag" in failed(laptop.push("--yes", "-t", tag))
    assert len(laptop.builds.builds) == 1


def test_a_role_that_codebuild_does_not_know_yet_is_waited_for(laptop: Laptop) -> None:
    sentence = "CodeBuild is not authorized to perform: sts:AssumeRole"
    laptop.aws.fixed_responses["CreateProject"] = json_error(400, "InvalidInputException", sentence)
    known = threading.Timer(8, laptop.aws.fixed_responses.clear)
    known.start()
    try:
        assert addresses(laptop.push("--yes"))
    finally:
        known.cancel()


#: docs.aws.amazon.com/codebuild/latest/userguide/build-spec-ref.html
PHASES = {"install", "pre_build", "build", "post_build"}
OF_PHASE = {"run-as", "on-failure", "commands", "finally", "runtime-versions"}
OF_ENV = {"shell", "variables", "parameter-store", "exported-variables", "secrets-manager"}


def test_project_and_buildspec_are_what_aws_takes(tmp_path: Path) -> None:
    """cfn-lint knows a project's members and values; the buildspec's are those of AWS's reference."""
    project = Names("team/triton", "123456789012", [REGION], "bucket").document("project")
    spec = yaml.safe_load(project["source"]["buildspec"])
    assert spec["version"] == 0.2 and spec.keys() <= {"version", "env", "phases"}
    assert spec["env"].keys() <= OF_ENV and spec["phases"].keys() <= PHASES
    for phase in spec["phases"].values():
        assert phase.keys() <= OF_PHASE and all(isinstance(each, str) for each in phase["commands"])
        done = subprocess.run(
            ["bash", "-n"], input="\n".join(phase["commands"]), text=True, capture_output=True
        )
        assert done.returncode == 0, done.stderr

    def capitalised(part: Any) -> Any:
        if isinstance(part, dict):
            names = {name: name[0].upper() + name[1:] for name in part}
            names |= {"buildspec": "BuildSpec"}
            return {names[name]: capitalised(value) for name, value in part.items()}
        return [capitalised(each) for each in part] if isinstance(part, list) else part

    resources = {"Project": {"Type": "AWS::CodeBuild::Project", "Properties": capitalised(project)}}
    template = tmp_path / "stack.json"
    template.write_text(json.dumps({"AWSTemplateFormatVersion": "2010-09-09", "Resources": resources}))
    assert cfn_lint(template) == ""


#: Docker's own examples and their neighbours: the order counts, a folder takes its files, ``**`` crosses folders.
IGNORED = """
# a comment
*
!kept
 !spaced
!/rooted/
kept/*/deep
kept/[0-9]*
kept/a?c
**/*.md
!kept/README.md
**/cache
kept/**/last
!kept\\*star
"""
TREE = (
    "top",
    "kept/file",
    "kept/one/deep/file",
    "kept/one/two/deep",
    "kept/1/weights",
    "kept/abc",
    "kept/abbc",
    "kept/notes.md",
    "kept/README.md",
    "kept/x/README.md",
    "kept/cache/file",
    "kept/x/cached",
    "kept/last",
    "kept/x/y/last/file",
    "kept*star",
    "keptxstar",
    "spaced/file",
    "rooted/.hidden",
    ".git/config",
    "sm/keptx",
)


@pytest.mark.parametrize("patterns", [IGNORED, "", "**\n!top\n!kept/x", "kept\n!kept/file", ".git\n**/x/**"])
def test_what_is_sent_is_what_an_engine_sends(pushing: Checkout, tmp_path: Path, patterns: str) -> None:
    """Podman reads the same ignore file, and copies its whole context into an image."""
    context = tmp_path / "context"
    for name in TREE:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text("x")
    (context / ".dockerignore").write_text(patterns)
    (tmp_path / "Dockerfile").write_text(f'FROM scratch\nLABEL {pushing.label}\nCOPY . /all\nCMD ["x"]\n')
    build = ("build", "--quiet", "--no-cache", "--file", str(tmp_path / "Dockerfile"), str(context))
    image = podman(*build, env=pushing.env).split()[-1]
    made = podman("create", image, env=pushing.env)
    packed = tmp_path / "image.tar"
    podman("export", "--output", str(packed), made)
    podman("rm", made)
    with tarfile.open(packed) as archive:
        copied = {
            row.name.removeprefix("all/") for row in archive if row.isfile() and row.name.startswith("all/")
        }
    assert {*source.files(context)} == {name for name in copied if not name.startswith(".git/")}
