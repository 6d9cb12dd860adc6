"""What is pushed to a real registry, with a fake AWS (moto) behind the real aws command line, can be pulled and run."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.aws import ECR_PASSWORD, aws_client, registry_config, running_registry
from tests.support.push_checkout import Checkout, podman


def run_after_pull(pushing: Checkout, image: str, *command: str) -> str:
    podman("rmi", "--force", "--ignore", image, env=pushing.env)
    podman("pull", "--quiet", image, env=pushing.env)
    return podman("run", "--rm", "--network", "none", image, *command)


def describe_repository(moto: str, region: str) -> dict[str, Any]:
    ecr = aws_client("ecr", f"http://{moto}", region)
    (description,) = ecr.describe_repositories(repositoryNames=["trireme"])["repositories"]
    return dict(description)


def test_a_pushed_image_runs_after_a_pull(pushing: Checkout, registry: str) -> None:
    done = pushing.push()
    assert done.returncode == 0, done.stderr
    image, digest = done.stdout.strip().split("@")
    assert image == f"{registry}/trireme:{pushing.tag}"
    podman("rmi", "--force", f"trireme:{pushing.tag}")
    assert run_after_pull(pushing, image) == "pulled and run"
    assert run_after_pull(pushing, f"{registry}/trireme@{digest}") == "pulled and run"


@pytest.mark.exhaustive
def test_the_manifest_is_dockers_because_sagemaker_refuses_ocis_and_has_labels(pushing: Checkout) -> None:
    done = pushing.push()
    assert done.returncode == 0 and "OCI" not in done.stderr
    kind = podman("image", "inspect", "--format", "{{.ManifestType}}", done.stdout.split("@")[0])
    assert kind == "application/vnd.docker.distribution.manifest.v2+json"
    labels = json.loads(podman("image", "inspect", "--format", "{{json .Labels}}", f"trireme:{pushing.tag}"))
    assert labels["org.opencontainers.image.version"] == "0.1.0"
    assert pushing.git("rev-parse", "HEAD").startswith(labels["org.opencontainers.image.revision"])


@pytest.mark.exhaustive
def test_every_region_gets_a_repository_with_scans_and_immutable_tags(pushing: Checkout, moto: str) -> None:
    done = pushing.push("--region", "eu-central-1", "--region", "us-gov-west-1")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    for region in ("eu-central-1", "us-gov-west-1"):
        settings = describe_repository(moto, region)
        assert settings["imageTagMutability"] == "IMMUTABLE"
        assert settings["imageScanningConfiguration"] == {"scanOnPush": True}


@pytest.mark.exhaustive
def test_pushing_the_same_image_again_succeeds(pushing: Checkout) -> None:
    first, second = pushing.push(), pushing.push()
    assert second.returncode == 0
    assert first.stdout == second.stdout
    assert "is there already, the same image" in second.stderr


@pytest.mark.exhaustive
def test_a_tag_is_never_moved_to_another_image(pushing: Checkout) -> None:
    tag = f"release-{uuid.uuid4()}"
    first = pushing.push("-t", tag)
    assert first.returncode == 0 and tag in first.stdout
    with (pushing.folder / "Dockerfile").open("a") as file:
        file.write("ENV ANOTHER=yes\n")
    pushing.commit()
    second = pushing.push("-t", tag)
    assert second.returncode == 1
    assert f"has another build under the tag {tag} already" in second.stderr.splitlines()[-1]
    assert "choose another tag with -t" in second.stderr.splitlines()[-1]


@pytest.mark.exhaustive
def test_the_commands_of_a_dry_run_push_the_same_image(pushing: Checkout, registry: str) -> None:
    printed = pushing.push("--dry-run").stdout
    assert f"podman push {registry}/trireme:{pushing.tag}\n" in printed
    where = f"http://{registry}/v2/trireme/manifests/{pushing.tag}"
    assert requests.get(where, auth=("AWS", ECR_PASSWORD), timeout=5).status_code == 404, "it pushed nothing"
    done = subprocess.run(
        ["bash", "-euc", printed], cwd=pushing.folder, env=pushing.env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert run_after_pull(pushing, f"{registry}/trireme:{pushing.tag}") == "pulled and run"


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        pytest.param(
            "COPY missing .", "the build failed, and nothing was pushed", marks=pytest.mark.exhaustive
        ),
        ("RUN dd if=/dev/zero of=/dev/full", "'podman system prune' makes room"),  # like a full disk
    ],
)
def test_a_failed_build_pushes_nothing(pushing: Checkout, step: str, reason: str) -> None:
    with (pushing.folder / "Dockerfile").open("a") as file:
        file.write(f"{step}\n")
    done = pushing.push()
    assert (done.returncode, done.stdout) == (1, "")
    assert "not committed" in done.stderr
    assert reason in done.stderr.splitlines()[-1]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"password": "another"}, "did not let 'podman' log in"),
        ({"storage": ", maintenance: {readonly: {enabled: true}}"}, "the push to"),
    ],
)
def test_a_registry_that_refuses_is_named(
    pushing: Checkout, tmp_path: Path, config: dict[str, str], reason: str
) -> None:
    with running_registry(registry_config(tmp_path, **config)) as refusing:
        done = pushing.push(REGISTRY=refusing)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert refusing in last and reason in last
