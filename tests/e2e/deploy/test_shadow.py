"""A shadow beside production: added, compared, promoted and removed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.support.aws import REGION
from tests.support.deploy_account import ACCOUNT, IMAGE, FakeAccount, write_repository
from trireme_tools.deploy import gpu_hosts
from trireme_tools.deploy.model_data import url_of

NEXT_IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/trireme@sha256:{'0' * 64}"


def configuration_of(cloud: FakeAccount) -> dict[str, Any]:
    """The arguments that the newest configuration was created with."""
    created: dict[str, Any] = cloud.proxy.bodies["CreateEndpointConfig"]
    assert created["EndpointConfigName"] == cloud.deployed_configuration()
    return created


def container_of(cloud: FakeAccount, model: str) -> dict[str, Any]:
    container: dict[str, Any] = cloud.client("sagemaker").describe_model(ModelName=model)["PrimaryContainer"]
    return container


def add_shadow(cloud: FakeAccount, folder: Path, *options: str) -> None:
    """Deploy the endpoint, and another version of its repository as its shadow."""
    assert cloud.deploy(*options).code == 0
    write_repository(folder, "2")
    done = cloud.sm("deploy", "ships", "--shadow", str(folder), "--percent", "20")
    assert done.code == 0, done.err


def put_metric(cloud: FakeAccount, variant: str, name: str, value: float) -> None:
    dimensions = [{"Name": "EndpointName", "Value": "ships"}, {"Name": "VariantName", "Value": variant}]
    time = datetime.now(timezone.utc) - timedelta(minutes=9)
    row = {"MetricName": name, "Value": value, "Timestamp": time, "Dimensions": dimensions}
    cloud.client("cloudwatch").put_metric_data(Namespace="AWS/SageMaker", MetricData=[row])


def test_a_shadow_runs_another_archive_and_production_stays(cloud: FakeAccount, tmp_path: Path) -> None:
    assert cloud.deploy().code == 0
    before = cloud.proxy.bodies["CreateEndpointConfig"]["ProductionVariants"]
    add_shadow(cloud, tmp_path / "next")
    created = configuration_of(cloud)
    (production,), (shadow,) = created["ProductionVariants"], created["ShadowProductionVariants"]
    assert production.items() >= before[0].items()
    assert (shadow["VariantName"], shadow["InitialVariantWeight"]) == ("shadow", 0.2)
    assert shadow["InstanceType"] == production["InstanceType"]
    sent = cloud.proxy.bodies["CreateEndpointConfig"]
    (ami,) = {each["InferenceAmiVersion"] for kind in sent if "Variants" in kind for each in sent[kind]}
    assert ami == gpu_hosts.known_amis()[-1]
    old, new = (container_of(cloud, variant["ModelName"]) for variant in (production, shadow))
    assert new["Image"] == old["Image"] and url_of(new) != url_of(old)
    again = cloud.sm("deploy", "ships", "--shadow", str(tmp_path / "next"), "--percent", "20")
    assert again.code == 0 and configuration_of(cloud) is created, again.err


@pytest.mark.exhaustive
def test_a_shadow_may_be_another_image(cloud: FakeAccount) -> None:
    assert cloud.deploy().code == 0
    manifest = cloud.client("ecr").describe_images(repositoryName="trireme")["imageDetails"][0]
    image = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/trireme@{manifest['imageDigest']}"
    done = cloud.sm("deploy", "ships", "--shadow", image)
    assert done.code == 0, done.err
    (shadow,) = configuration_of(cloud)["ShadowProductionVariants"]
    assert container_of(cloud, shadow["ModelName"])["Image"] == image
    missing = cloud.sm("deploy", "ships", "--shadow", NEXT_IMAGE)
    assert missing.code == 1


def test_a_shadow_whose_image_cannot_run_on_productions_host_is_refused(cloud: FakeAccount) -> None:
    assert cloud.deploy("--ami", "none").code == 0
    image = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/trireme:0.1.0-3f2c9a1b7d04"
    registry, repository = cloud.client("ecr"), {"repositoryName": "trireme"}
    (known,) = registry.batch_get_image(**repository, imageIds=[{"imageTag": "1"}])["images"]
    registry.put_image(**repository, imageManifest=known["imageManifest"], imageTag=image.rpartition(":")[2])
    cloud.proxy.changes = []
    done = cloud.sm("deploy", "ships", "--shadow", image)
    assert done.code == 1, done.err
    assert cloud.proxy.changes == []


@pytest.mark.exhaustive
def test_status_compares_both_side_by_side(cloud: FakeAccount, tmp_path: Path) -> None:
    add_shadow(cloud, tmp_path / "next")
    for variant, latency_us, errors in (("AllTraffic", 12_000, 1), ("shadow", 9_000, 3)):
        put_metric(cloud, variant, "ModelLatency", latency_us)
        put_metric(cloud, variant, "Invocation5XXErrors", errors)
    done = cloud.sm("status", "ships")
    assert done.code == 0, done.err
    rows = {line.split("  ")[0]: line.split() for line in done.out.splitlines()}
    assert "20%" in rows["shadow"]
    assert rows["mean time in the box, last hour"][-4:] == ["12.0", "ms", "9.0", "ms"]
    assert rows["failed in the box, last hour"][-2:] == ["1", "3"]


def test_a_promoted_shadow_serves_alone_and_can_be_rolled_back(cloud: FakeAccount, tmp_path: Path) -> None:
    add_shadow(cloud, tmp_path / "next", "--count", "2")
    with_shadow = cloud.deployed_configuration()
    shadow_model = configuration_of(cloud)["ShadowProductionVariants"][0]["ModelName"]
    assert cloud.sm("deploy", "ships", "--promote-shadow").code == 0
    created = configuration_of(cloud)
    (production,) = created["ProductionVariants"]
    assert "ShadowProductionVariants" not in created
    assert (production["ModelName"], production["VariantName"]) == (shadow_model, "AllTraffic")
    assert (production["InitialVariantWeight"], production["InitialInstanceCount"]) == (1.0, 2)
    assert cloud.sm("deploy", "ships", "--promote-shadow").code == 1
    assert cloud.sm("deploy", "ships", "--rollback").code == 0
    assert cloud.deployed_configuration() == with_shadow


def test_the_shadows_own_metrics_do_not_set_off_productions_alarms(
    cloud: FakeAccount, tmp_path: Path
) -> None:
    add_shadow(cloud, tmp_path / "next", "--alarms")

    def metrics_name(kind: str) -> str:
        model = configuration_of(cloud)[kind][0]["ModelName"]
        return str(container_of(cloud, model)["Environment"]["TRIREME_ENDPOINT_NAME"])

    assert (metrics_name("ProductionVariants"), metrics_name("ShadowProductionVariants")) == (
        "ships",
        "ships-shadow",
    )
    assert cloud.sm("deploy", "ships", "--promote-shadow").code == 0
    assert metrics_name("ProductionVariants") == "ships"


@pytest.mark.exhaustive
def test_a_removed_shadow_leaves_production_as_it_was(cloud: FakeAccount, tmp_path: Path) -> None:
    add_shadow(cloud, tmp_path / "next")
    production = configuration_of(cloud)["ProductionVariants"]
    assert cloud.sm("deploy", "ships", "--remove-shadow").code == 0
    described = cloud.client("sagemaker").describe_endpoint_config(
        EndpointConfigName=cloud.deployed_configuration()
    )
    assert described["ProductionVariants"] == production
    assert cloud.sm("deploy", "ships", "--remove-shadow").code == 1
    assert cloud.sm("delete", "ships", "--yes").code == 0
    assert not any(cloud.list_resources().values())


def test_a_shadow_that_does_not_start_is_removed_and_production_serves_on(
    cloud: FakeAccount, tmp_path: Path
) -> None:
    assert cloud.deploy().code == 0
    before = cloud.list_resources()
    write_repository(tmp_path / "next", "2")
    cloud.proxy.endpoint_states = [
        {
            "EndpointStatus": "InService",
            "EndpointConfigName": before["configurations"][0],
            "FailureReason": "did not pass the ping health check",
        }
    ] * 9
    cloud.proxy.changes, cloud.proxy.rolls_back = [], True
    done = cloud.sm("deploy", "ships", "--shadow", str(tmp_path / "next"))
    assert done.code == 1, done.err
    after = cloud.list_resources()
    assert after | {"archives": []} == before | {"archives": []}


def test_a_shadow_needs_an_endpoint_with_instances_that_serves(cloud: FakeAccount, tmp_path: Path) -> None:
    assert cloud.sm("deploy", "ships", "--remove-shadow").code == 1
    assert "--image" in cloud.sm("deploy", "ships", "--image", IMAGE, "--shadow", IMAGE).err
    assert cloud.deploy("--serverless", "1024:5").code == 0
    assert cloud.sm("deploy", "ships", "--shadow", IMAGE).code == 1
