"""A dry run prints the commands, and needs neither an engine nor AWS."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.push.checkout import Checkout


def pushed(printed: list[str]) -> list[str]:
    return [line.split("ecr.")[1] for line in printed if line.startswith("docker push")]


@pytest.mark.parametrize(
    ("options", "repository", "tags"),
    [
        (["--region", "us-gov-west-1"], "us-gov-west-1.amazonaws.com/trireme", ["TAG"]),
        (["--region", "cn-north-1"], "cn-north-1.amazonaws.com.cn/trireme", ["TAG"]),
        # The repository's name, as the article's script takes it.
        (["team/triton_1"], "eu-west-1.amazonaws.com/team/triton_1", ["TAG"]),
        (
            ["--target", "cpu", "--platform", "linux/arm64"],
            "eu-west-1.amazonaws.com/trireme",
            ["TAG-cpu-arm64"],
        ),
        (["--as-user"], "eu-west-1.amazonaws.com/trireme", ["TAG-user"]),
        (
            ["--platform", "linux/arm64,linux/amd64", "-t", "stable"],
            "eu-west-1.amazonaws.com/trireme",
            ["TAG-arm64", "stable-arm64", "TAG-amd64", "stable-amd64"],
        ),
    ],
)
def test_repository_and_tags_say_partition_name_target_and_platform(
    checkout: Checkout, options: list[str], repository: str, tags: list[str]
) -> None:
    printed = checkout.dry_run(*options, AWS_REGION="eu-west-1")
    assert pushed(printed) == [f"{repository}:{tag.replace('TAG', checkout.tag)}" for tag in tags]
    name = repository.partition("/")[2]
    assert [line for line in printed if "create-repository" in line and f"--repository-name {name} " in line]
    platforms = [word for word in " ".join(options).replace(",", " ").split() if word.startswith("linux/")]
    builds = [line for line in printed if line.startswith("docker build")]
    for build, platform in zip(builds, platforms or [""], strict=True):
        assert f"--platform {platform}" in build or not platform
        # SageMaker expects root. RUN_AS is 1000:1000 where nobody sets it.
        assert ("--build-arg RUN_AS=0:0 " in build) is ("--as-user" not in options)


def test_models_can_be_put_into_the_image(checkout: Checkout, tmp_path: Path) -> None:
    config = tmp_path / "models" / "pets" / "config.pbtxt"
    config.parent.mkdir(parents=True)
    config.write_text("")
    options = ("pets", "--models", str(tmp_path / "models"), "--region", "eu-west-1")
    build, push = checkout.dry_run(*options)[2::4][:2]
    assert f"--target with-models --build-context models={tmp_path}/models ." in build
    tag = build.split("--tag pets:")[1].split()[0]
    assert tag.startswith(f"{checkout.tag}-models-")
    assert tag in push
    # Other content makes another image, so another tag.
    config.write_text("max_batch_size: 1")
    assert tag not in checkout.dry_run(*options)[2]


def test_every_region_gets_every_tag_of_one_build(checkout: Checkout) -> None:
    printed = checkout.dry_run("--region", "eu-west-1", "--region", "us-east-1", "-t", "stable")
    assert len([line for line in printed if line.startswith("docker build")]) == 1
    assert pushed(printed) == [
        f"{region}.amazonaws.com/trireme:{tag}"
        for region in ("eu-west-1", "us-east-1")
        for tag in (checkout.tag, "stable")
    ]


def test_the_image_says_its_clean_source_and_the_tag_what_is_not_committed(checkout: Checkout) -> None:
    checkout.git("remote", "add", "origin", "https://me:secret@example.com/trireme.git")
    (checkout.folder / "new").touch()
    printed = checkout.dry_run("--region", "eu-west-1")
    assert printed[-1].endswith(f":{checkout.tag}-dirty")
    assert "SOURCE=https://example.com/trireme.git" in printed[2] and "secret" not in "\n".join(printed)


@pytest.mark.parametrize(
    ("installed", "named", "engine"),
    [
        ("docker podman", "", "docker"),
        ("docker podman", "podman", "podman"),
        ("podman", "", "podman"),
        ("", "", "docker"),
    ],
)
def test_the_engine_is_the_named_one_else_docker_else_podman(
    checkout: Checkout, tmp_path: Path, installed: str, named: str, engine: str
) -> None:
    # The path has only the engines of the case. A dry run starts none of them.
    for tool in ("bash", "env", "dirname", "git", "sed", *installed.split()):
        program = "true" if tool in installed.split() else tool
        (tmp_path / tool).symlink_to(shutil.which(program) or program)
    printed = checkout.dry_run("--region", "eu-west-1", PATH=str(tmp_path), DOCKER=named)
    assert printed[2].startswith(f"{engine} build ") and printed[-1].startswith(f"{engine} push ")
