"""An image that contains its models is deployed without model data: the real boto3 against moto's AWS."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.deploy_account import IMAGE, FakeAccount, cloud, proxy
from tests.support.push_checkout import Checkout, checkout
from tests.support.sm_command import RunSm
from tests.support.snapshots import check_snapshot

__all__ = ["checkout", "cloud", "proxy"]

#: The dimensions of an endpoint's metrics.
VARIANT = {"EndpointName": "ships", "VariantName": "AllTraffic"}


def test_deploy_needs_no_model_data_and_sends_none_to_aws(cloud: FakeAccount) -> None:
    deploy = ("deploy", "ships", "--image", IMAGE, "--instance-type", "ml.c5.large")
    cloud.succeed(*deploy)
    [name] = cloud.list_resources()["models"]
    container = cloud.client("sagemaker").describe_model(ModelName=name)["PrimaryContainer"]
    assert (container["Image"], "ModelDataUrl" in container) == (IMAGE, False)
    assert cloud.list_resources()["archives"] == []
    # Deploying the same again changes nothing, and all of it can be deleted.
    serving_before = cloud.deployed_configuration()
    cloud.succeed(*deploy)
    assert cloud.deployed_configuration() == serving_before
    cloud.succeed("delete", "ships", "--yes")
    assert cloud.list_resources()["models"] == []


@pytest.mark.parametrize("name", ["triton-multi-models", "team/triton_1"])
def test_build_and_push_accepts_a_repository_name(checkout: Checkout, name: str) -> None:
    """``./build_and_push.sh NAME``, as the article's script does."""
    printed = checkout.dry_run(name, "--region", "eu-west-1")
    assert printed[-1] == f"docker push $account.dkr.ecr.eu-west-1.amazonaws.com/{name}:{checkout.tag}"
    assert f"create-repository --region eu-west-1 --repository-name {name} " in printed[3]


def test_build_and_push_can_put_models_into_the_image(checkout: Checkout, tmp_path: Path) -> None:
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


def test_status_shows_the_metrics_of_a_multi_model_endpoint_that_exist(cloud: FakeAccount) -> None:
    cloud.deployed()
    for loaded, percent in ((3, 120), (5, 140)):
        metrics = {"LoadedModelCount": loaded, "CPUUtilization": percent}
        cloud.put_metrics("/aws/sagemaker/Endpoints", VARIANT, **metrics)
    for hit, microseconds in ((1, 2_000_000), (0.5, 1_000_000)):
        cloud.put_metrics("AWS/SageMaker", VARIANT, ModelCacheHit=hit, ModelLoadingWaitTime=microseconds)
    lines = dict(line.split("  ", 1) for line in cloud.succeed("status", "ships").out.splitlines())
    shown = {title.removesuffix(", last hour"): text.split()[0] for title, text in lines.items()}
    expected = {
        "LoadedModelCount": "4.0",
        "ModelCacheHit": "75.0%",
        "ModelLoadingWaitTime": "1,500.0",
        "CPUUtilization": "130.0",
    }
    assert shown.items() >= expected.items()
    assert {"GPUUtilization", "MemoryUtilization"}.isdisjoint(shown)


@pytest.mark.parametrize("version", ["23.02", "23.12"])
def test_every_region_has_the_image_of_the_notebooks_and_of_the_sdk(sm: RunSm, version: str) -> None:
    """The accounts of the notebooks' account_id_map, or the SDK's, as they were compared last."""
    check_snapshot(f"images-{version}.txt", sm("images", "--version", version).out)
    command = sm("images", "--region", "us-east-1", "--version", version)
    name = f"785573368785.dkr.ecr.us-east-1.amazonaws.com/sagemaker-tritonserver:{version}-py3"
    assert (command.status, command.out) == (0, f"{name}\n")
