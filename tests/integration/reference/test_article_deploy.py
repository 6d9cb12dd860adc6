"""An image that contains its models is deployed without model data: the real boto3 against moto's AWS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deploy_account import IMAGE, FakeAccount, cloud, proxy
from tests.support.push_checkout import Checkout, checkout
from tests.support.sm_command import RunSm, sm

__all__ = ["checkout", "cloud", "proxy", "sm"]


def test_deploy_needs_no_model_data_and_sends_none_to_aws(cloud: FakeAccount) -> None:
    deploy = cloud.sm("deploy", "ships", "--image", IMAGE, "--instance-type", "ml.c5.large")
    assert deploy.code == 0, deploy.err
    sagemaker = cloud.client("sagemaker")
    [name] = cloud.list_resources()["models"]
    container = sagemaker.describe_model(ModelName=name)["PrimaryContainer"]
    assert container["Image"] == IMAGE
    assert "ModelDataUrl" not in container
    assert cloud.list_resources()["archives"] == []
    assert cloud.sm("status", "ships").code == 0
    # Deploying the same again changes nothing, and all of it can be deleted.
    serving_before = cloud.deployed_configuration()
    assert cloud.sm("deploy", "ships", "--image", IMAGE, "--instance-type", "ml.c5.large").code == 0
    assert cloud.deployed_configuration() == serving_before
    assert cloud.sm("delete", "ships", "--yes").code == 0
    assert cloud.list_resources()["models"] == []


def print_template(sm: RunSm, format_: str) -> Any:
    command = sm("template", "cats", "--format", format_, "--image", IMAGE)
    assert command.status == 0, command.err
    return json.loads(command.out)


def test_no_template_has_model_data(sm: RunSm) -> None:
    stack = print_template(sm, "cloudformation")["Resources"]
    assert "ModelDataUrl" not in stack["Model"]["Properties"]["PrimaryContainer"]
    [policy] = stack["Role"]["Properties"]["Policies"]
    actions = {
        action for statement in policy["PolicyDocument"]["Statement"] for action in statement["Action"]
    }
    assert not any(action.startswith("s3:") for action in actions)
    terraform = print_template(sm, "terraform")["resource"]["aws_sagemaker_model"]["this"]
    assert "model_data_url" not in terraform["primary_container"]
    command = sm("template", "cats", "--format", "kserve", "--image", IMAGE)
    runtime, service = yaml.safe_load_all(command.out)
    [container] = runtime["spec"]["containers"]
    assert {variable["name"] for variable in container["env"]}.isdisjoint(
        {"STORAGE_URI", "TRIREME_MODEL_REPOSITORY"}
    )
    assert "storageUri" not in service["spec"]["predictor"]["model"]


@pytest.mark.parametrize("name", ["triton-multi-models", "team/triton_1"])
def test_build_and_push_accepts_a_repository_name(checkout: Checkout, name: str) -> None:
    """``./build_and_push.sh NAME``, as the article's script does."""
    printed = checkout.dry_run(name, "--region", "eu-west-1")
    registry = "$account.dkr.ecr.eu-west-1.amazonaws.com"
    assert printed[-1] == f"docker push {registry}/{name}:{checkout.tag}"
    assert f"--repository-names {name} || aws ecr create-repository" in printed[3]
    assert f"create-repository --region eu-west-1 --repository-name {name} " in printed[3]


def test_build_and_push_can_put_models_into_the_image(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "models" / "pets").mkdir(parents=True)
    (tmp_path / "models" / "pets" / "config.pbtxt").write_text("")
    models = str(tmp_path / "models")
    build, push = checkout.dry_run("pets", "--models", models, "--region", "eu-west-1")[2::4][:2]
    assert f"--target with-models --build-context models={models} ." in build
    tag = build.split("--tag pets:")[1].split()[0]
    assert tag.startswith(f"{checkout.tag}-models-")
    assert tag in push
    # Other content makes another image, so another tag.
    (tmp_path / "models" / "pets" / "config.pbtxt").write_text("max_batch_size: 1")
    assert tag not in checkout.dry_run("pets", "--models", models, "--region", "eu-west-1")[2]
