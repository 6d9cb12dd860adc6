"""A dry run prints the commands, and needs neither an engine nor AWS."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.push_checkout import Checkout


@pytest.mark.parametrize(
    ("region", "registry"),
    [
        ("eu-west-1", "$account.dkr.ecr.eu-west-1.amazonaws.com"),
        ("us-gov-west-1", "$account.dkr.ecr.us-gov-west-1.amazonaws.com"),
        ("cn-north-1", "$account.dkr.ecr.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_the_registry_has_the_domain_of_its_partition(checkout: Checkout, region: str, registry: str) -> None:
    printed = checkout.dry_run("--region", region)
    assert printed[-1] == f"docker push {registry}/trireme:{checkout.tag}"
    assert f"sts get-caller-identity --region {region} " in printed[1]


def test_every_region_gets_every_tag_of_one_build(checkout: Checkout) -> None:
    printed = checkout.dry_run("--region", "eu-west-1", "--region", "us-east-1", "-t", "stable")
    assert len([line for line in printed if line.startswith("docker build")]) == 1
    pushed = [line.split("ecr.")[1] for line in printed if line.startswith("docker push")]
    assert pushed == [
        f"{region}.amazonaws.com/trireme:{tag}"
        for region in ("eu-west-1", "us-east-1")
        for tag in (checkout.tag, "stable")
    ]


def test_target_and_platform_are_in_the_tag(checkout: Checkout) -> None:
    printed = checkout.dry_run("--region", "eu-west-1", "--target", "cpu", "--platform", "linux/arm64")
    assert printed[-1].endswith(f":{checkout.tag}-cpu-arm64")
    assert (
        "--build-arg BASE_IMAGE=docker.io/library/debian:bookworm-slim --platform linux/arm64" in printed[2]
    )


def test_each_platform_is_an_image_of_its_own(checkout: Checkout) -> None:
    printed = checkout.dry_run(
        "--region", "eu-west-1", "--platform", "linux/arm64,linux/amd64", "-t", "stable"
    )
    pushed = [line.rpartition(":")[2] for line in printed if line.startswith("docker push")]
    assert pushed == [f"{checkout.tag}-arm64", "stable-arm64", f"{checkout.tag}-amd64", "stable-amd64"]
    builds = [line for line in printed if line.startswith("docker build")]
    assert ["--platform linux/arm64" in builds[0], "--platform linux/amd64" in builds[1]] == [True, True]


def test_uncommitted_changes_are_marked_in_the_tag(checkout: Checkout) -> None:
    (checkout.folder / "new").touch()
    assert checkout.dry_run("--region", "eu-west-1")[-1].endswith(f":{checkout.tag}-dirty")


def test_the_password_in_a_clones_address_is_not_in_the_image(checkout: Checkout) -> None:
    checkout.git("remote", "add", "origin", "https://me:secret@example.com/trireme.git")
    printed = checkout.dry_run("--region", "eu-west-1")
    assert "SOURCE=https://example.com/trireme.git" in printed[2]
    assert "secret" not in "\n".join(printed)


@pytest.mark.parametrize(
    ("installed", "env", "engine"),
    [
        (("docker", "podman"), {}, "docker"),
        (("docker", "podman"), {"DOCKER": "podman"}, "podman"),
        (("docker",), {}, "docker"),
        (("podman",), {}, "podman"),
        ((), {}, "docker"),
    ],
)
def test_the_engine_is_the_named_one_else_docker_else_podman(
    checkout: Checkout, tmp_path: Path, installed: tuple[str, ...], env: dict[str, str], engine: str
) -> None:
    # The path has only the engines of the case. A dry run starts none of them.
    for tool in ("bash", "env", "dirname", "git", "sed", *installed):
        program = "true" if tool in installed else tool
        (tmp_path / tool).symlink_to(shutil.which(program) or program)
    printed = checkout.dry_run("--region", "eu-west-1", **{"PATH": str(tmp_path), "DOCKER": "", **env})
    assert printed[2].startswith(f"{engine} build ")
    assert printed[-1].startswith(f"{engine} push ")
