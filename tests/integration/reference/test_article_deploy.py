"""An image with the models inside becomes an endpoint without model data: moto's AWS, the real boto3 and box."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support.deploy_account import IMAGE, Cloud, cloud, proxy
from tests.support.push_checkout import Checkout, checkout
from tests.support.push_commands import commands
from tests.support.sm_command import RunSm, sm

__all__ = ["checkout", "cloud", "proxy", "sm"]


def test_deploy_needs_no_model_data_and_sends_none_to_aws(cloud: Cloud) -> None:
    done = cloud.sm("deploy", "ships", "--image", IMAGE, "--instance-type", "ml.c5.large")
    assert done.code == 0, done.err
    sagemaker = cloud.client("sagemaker")
    [name] = cloud.things()["models"]
    container = sagemaker.describe_model(ModelName=name)["PrimaryContainer"]
    assert container["Image"] == IMAGE and "ModelDataUrl" not in container
    assert cloud.things()["archives"] == []
    shown = cloud.sm("status", "ships").out
    assert "model data     - (SingleModel)" in shown
    # The same again changes nothing; another image is an update; all of it can be removed.
    before = cloud.serving()
    assert cloud.sm("deploy", "ships", "--image", IMAGE, "--instance-type", "ml.c5.large").code == 0
    assert cloud.serving() == before
    assert cloud.sm("delete", "ships", "--yes").code == 0
    assert cloud.things()["models"] == []


def test_what_a_multi_model_endpoint_needs_is_still_asked_for(cloud: Cloud) -> None:
    done = cloud.sm("deploy", "ships", "--image", IMAGE, "--mme")
    assert done.code == 1 and "--mme wants --model-data" in done.err
    assert cloud.proxy.changes == []


def template(sm: RunSm, form: str) -> Any:
    said = sm("template", "cats", "--format", form, "--image", IMAGE)
    assert said.status == 0, said.err
    return json.loads(said.out)


def test_every_template_does_without_model_data(sm: RunSm) -> None:
    stack = template(sm, "cloudformation")["Resources"]
    assert "ModelDataUrl" not in stack["Model"]["Properties"]["PrimaryContainer"]
    [policy] = stack["Role"]["Properties"]["Policies"]
    actions = {action for row in policy["PolicyDocument"]["Statement"] for action in row["Action"]}
    assert not any(action.startswith("s3:") for action in actions)
    terraform = template(sm, "terraform")["resource"]["aws_sagemaker_model"]["this"]
    assert "model_data_url" not in terraform["primary_container"]
    said = sm("template", "cats", "--format", "kserve", "--image", IMAGE)
    runtime, service = yaml.safe_load_all(said.out)
    [pod] = runtime["spec"]["containers"]
    assert {row["name"] for row in pod["env"]}.isdisjoint({"STORAGE_URI", "TRIREME_MODEL_REPOSITORY"})
    assert "storageUri" not in service["spec"]["predictor"]["model"]


def test_iam_names_no_bucket_where_the_image_has_the_models(sm: RunSm) -> None:
    said = sm("iam", "cats", "--image", IMAGE)
    assert said.status == 0 and "s3:" not in said.out, said.err


@pytest.mark.parametrize("name", ["triton-multi-models", "team/triton_1"])
def test_build_and_push_takes_the_repositorys_name(checkout: Checkout, name: str) -> None:
    """``./build_and_push.sh NAME``, as the article's script does."""
    printed = commands(checkout, name, "--region", "eu-west-1")
    registry = "$account.dkr.ecr.eu-west-1.amazonaws.com"
    assert printed[-1] == f"docker push {registry}/{name}:{checkout.tag}"
    assert f"--repository-names {name} || aws ecr create-repository" in printed[3]
    assert f"create-repository --region eu-west-1 --repository-name {name} " in printed[3]


def test_a_pushed_image_may_have_the_models_inside(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "models" / "pets").mkdir(parents=True)
    (tmp_path / "models" / "pets" / "config.pbtxt").write_text("")
    models = str(tmp_path / "models")
    build, push = commands(checkout, "pets", "--models", models, "--region", "eu-west-1")[2::4][:2]
    assert f"--target with-models --build-context models={models} ." in build
    tag = build.split("--tag pets:")[1].split()[0]
    assert tag.startswith(f"{checkout.tag}-models-") and tag in push
    # Another content is another image, so another tag.
    (tmp_path / "models" / "pets" / "config.pbtxt").write_text("max_batch_size: 1")
    assert tag not in commands(checkout, "pets", "--models", models, "--region", "eu-west-1")[2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("Pets",), "cannot be a repository's name"),
        (("pets__x",), "cannot be a repository's name"),
        (("pets", "dogs"), "there is one NAME"),
        (("pets", "--models", "/nowhere"), "there is no model repository"),
    ],
)
def test_a_wrong_name_or_folder_is_said_before_anything_is_built(
    checkout: Checkout, words: tuple[str, ...], sentence: str
) -> None:
    done = checkout.push(*words, "--region", "eu-west-1", "--dry-run")
    assert done.returncode != 0 and sentence in done.stderr and done.stdout == ""
