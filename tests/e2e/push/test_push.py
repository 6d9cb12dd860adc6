"""What is pushed to a real registry, with a fake AWS (moto) behind the real aws command line, can be pulled and run."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from sm.settings import HERE
from tests.e2e.push.checkout import Checkout
from tests.support.aws import ECR_PASSWORD, aws_client, fake_aws, registry_config, running_registry
from tests.support.containers import podman

#: moto looks at the signature and the permissions of every call after these: the user, the policy, the key.
SET_UP_CALLS = 3


def run_after_pull(pushing: Checkout, name: str) -> str:
    podman("rmi", "--force", "--ignore", name, env=pushing.env)
    podman("pull", "--quiet", name, env=pushing.env)
    return podman("run", "--rm", "--network", "none", name).split()[0]


def pushed(pushing: Checkout, *options: str) -> list[str]:
    """Push, and return the lines that the command prints."""
    done = pushing.push(*options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def failed(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of a push that pushed nothing."""
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.splitlines()[-1]


def test_a_pushed_image_runs_after_a_pull(pushing: Checkout, registry: str) -> None:
    (line,) = pushed(pushing)
    name, digest = line.split("@")
    assert name == f"{registry}/trireme:{pushing.tag}"
    # SageMaker refuses OCI's manifests.
    kind = podman("image", "inspect", "--format", "{{.ManifestType}}", name)
    assert kind == "application/vnd.docker.distribution.manifest.v2+json"
    labels = json.loads(podman("image", "inspect", "--format", "{{json .Labels}}", name))
    assert labels["org.opencontainers.image.version"] == "0.1.0"
    assert pushing.git("rev-parse", "HEAD").startswith(labels["org.opencontainers.image.revision"])
    podman("rmi", "--force", f"trireme:{pushing.tag}")
    assert run_after_pull(pushing, f"{registry}/trireme@{digest}") == "ldconfig"


@pytest.mark.exhaustive
def test_every_region_gets_a_repository_with_scans_and_immutable_tags(pushing: Checkout, moto: str) -> None:
    regions = ("eu-central-1", "us-gov-west-1")
    assert len(pushed(pushing, *(word for region in regions for word in ("--region", region)))) == 2
    for region in regions:
        ecr = aws_client("ecr", f"http://{moto}", region)
        (settings,) = ecr.describe_repositories(repositoryNames=["trireme"])["repositories"]
        assert settings["imageTagMutability"] == "IMMUTABLE"
        assert settings["imageScanningConfiguration"] == {"scanOnPush": True}


@pytest.mark.exhaustive
def test_a_tag_is_pushed_again_and_never_moved_to_another_image(pushing: Checkout) -> None:
    tag = f"release-{uuid.uuid4()}"
    assert pushed(pushing, "-t", tag) == pushed(pushing, "-t", tag)
    pushing.add_step("ENV ANOTHER=yes")
    pushing.commit()
    done = pushing.push("-t", tag)
    assert done.returncode == 1 and tag in done.stderr.splitlines()[-1]


@pytest.mark.exhaustive
def test_the_commands_of_a_dry_run_push_the_same_image(pushing: Checkout, registry: str) -> None:
    printed = pushing.push("--dry-run").stdout
    where = f"http://{registry}/v2/trireme/manifests/{pushing.tag}"
    assert requests.get(where, auth=("AWS", ECR_PASSWORD), timeout=5).status_code == 404, "it pushed nothing"
    done = subprocess.run(["bash", "-euc", printed], cwd=pushing.folder, env=pushing.env, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert run_after_pull(pushing, f"{registry}/trireme:{pushing.tag}") == "ldconfig"


@pytest.mark.parametrize("step", ["COPY missing .", 'RUN ["/program", "--no-such-option"]'])
@pytest.mark.exhaustive
def test_a_failed_build_pushes_nothing(pushing: Checkout, step: str) -> None:
    pushing.add_step(step)
    assert failed(pushing.push())


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "config", [{"password": "another"}, {"storage": ", maintenance: {readonly: {enabled: true}}"}]
)
def test_a_registry_that_refuses_is_named(pushing: Checkout, tmp_path: Path, config: dict[str, str]) -> None:
    with running_registry(registry_config(tmp_path, **config)) as refusing:
        assert refusing in failed(pushing.push(REGISTRY=refusing))


@pytest.fixture
def strict_aws() -> Iterator[str]:
    """A fake AWS that refuses what no policy allows."""
    with fake_aws(INITIAL_NO_AUTH_ACTION_COUNT=str(SET_UP_CALLS)) as address:
        yield f"http://{address}"


def documented_permissions() -> list[str]:
    (block,) = re.findall(r"```json\n(.*?)```", (HERE / "docs" / "deploy" / "push.md").read_text(), re.DOTALL)
    statements: list[dict[str, Any]] = json.loads(block)["Statement"]
    actions = [statement["Action"] for statement in statements]
    return [name for names in actions for name in ([names] if isinstance(names, str) else names)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "missing", ["", "ecr:DescribeRepositories", "ecr:CreateRepository", "ecr:GetAuthorizationToken"]
)
def test_the_documented_permissions_are_enough_and_a_missing_one_is_named(
    pushing: Checkout, strict_aws: str, missing: str
) -> None:
    iam = aws_client("iam", strict_aws, "us-east-1")
    # AWS lets everybody call GetCallerIdentity; moto does not. Moto does not check resources.
    actions = ["sts:GetCallerIdentity", *(name for name in documented_permissions() if name != missing)]
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}]}
    iam.create_user(UserName="ci")
    iam.put_user_policy(UserName="ci", PolicyName="push", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName="ci")["AccessKey"]
    keys = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    done = pushing.push(AWS_ENDPOINT_URL=strict_aws, **keys)
    if missing:
        assert missing in failed(done) and "docs/deploy/push.md" in failed(done)
    else:
        assert done.returncode == 0, done.stderr
