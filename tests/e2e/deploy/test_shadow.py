"""A shadow beside production: added, compared, promoted and removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.deploy.account import IMAGE, FakeAccount, write_repository
from tests.support.aws import REGION
from tests.support.aws_proxy import ACCOUNT
from trireme_tools.deploy.model_data import url_of

REPOSITORY = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/trireme"


def container_of(cloud: FakeAccount, variant: dict[str, Any]) -> dict[str, Any]:
    model = cloud.client("sagemaker").describe_model(ModelName=variant["ModelName"])
    return dict(model["PrimaryContainer"])


def add_shadow(cloud: FakeAccount, folder: Path, *options: str) -> None:
    """Deploy the endpoint, and another version of its repository as its shadow."""
    cloud.deployed(*options)
    write_repository(folder, "2")
    cloud.succeed("deploy", "ships", "--shadow", str(folder), "--percent", "20")


def test_a_shadow_runs_another_archive_and_production_stays(cloud: FakeAccount, tmp_path: Path) -> None:
    cloud.deployed()
    before = cloud.created()["ProductionVariants"]
    for _ in range(2):
        add_shadow(cloud, tmp_path / "next")
        created = cloud.created()
        (production,), (shadow,) = created["ProductionVariants"], created["ShadowProductionVariants"]
        assert production.items() >= before[0].items()
        assert (shadow["VariantName"], shadow["InitialVariantWeight"]) == ("shadow", 0.2)
        for name in ("InstanceType", "InferenceAmiVersion"):
            assert shadow[name] == production[name]
        old, new = (container_of(cloud, variant) for variant in (production, shadow))
        assert new["Image"] == old["Image"] and url_of(new) != url_of(old)
    assert cloud.created() is created


@pytest.mark.exhaustive
def test_a_shadow_may_be_another_image_that_runs_on_productions_host(cloud: FakeAccount) -> None:
    cloud.deployed("--ami", "none")
    (known,) = cloud.client("ecr").describe_images(repositoryName="trireme")["imageDetails"]
    image = f"{REPOSITORY}@{known['imageDigest']}"
    cloud.succeed("deploy", "ships", "--shadow", image)
    (shadow,) = cloud.created()["ShadowProductionVariants"]
    assert container_of(cloud, shadow)["Image"] == image
    needs_newer_host = f"{REPOSITORY}:0.1.0-3f2c9a1b7d04"
    cloud.put_image(needs_newer_host.rpartition(":")[2])
    cloud.proxy.changes = []
    for refused in (f"{REPOSITORY}@sha256:{'0' * 64}", needs_newer_host):
        assert cloud.sm("deploy", "ships", "--shadow", refused).code == 1
    assert cloud.proxy.changes == []


def test_a_promoted_shadow_serves_alone_and_can_be_rolled_back(cloud: FakeAccount, tmp_path: Path) -> None:
    add_shadow(cloud, tmp_path / "next", "--count", "2", "--alarms")
    with_shadow = cloud.deployed_configuration()
    (production,), (shadow,) = (cloud.created()[f"{kind}ProductionVariants"] for kind in ("", "Shadow"))
    # The shadow's own metrics must not set off production's alarms.
    names = [
        container_of(cloud, each)["Environment"]["TRIREME_ENDPOINT_NAME"] for each in (production, shadow)
    ]
    assert names == ["ships", "ships-shadow"]
    cloud.succeed("deploy", "ships", "--promote-shadow")
    assert "ShadowProductionVariants" not in cloud.created()
    (promoted,) = cloud.created()["ProductionVariants"]
    assert url_of(container_of(cloud, promoted)) == url_of(container_of(cloud, shadow))
    assert container_of(cloud, promoted)["Environment"]["TRIREME_ENDPOINT_NAME"] == "ships"
    expected = {"VariantName": "AllTraffic", "InitialVariantWeight": 1.0, "InitialInstanceCount": 2}
    assert promoted.items() >= expected.items()
    assert cloud.sm("deploy", "ships", "--promote-shadow").code == 1
    cloud.succeed("deploy", "ships", "--rollback")
    assert cloud.deployed_configuration() == with_shadow


@pytest.mark.exhaustive
def test_a_removed_shadow_leaves_production_as_it_was(cloud: FakeAccount, tmp_path: Path) -> None:
    add_shadow(cloud, tmp_path / "next")
    production = cloud.created()["ProductionVariants"]
    cloud.succeed("deploy", "ships", "--remove-shadow")
    described = cloud.client("sagemaker").describe_endpoint_config(
        EndpointConfigName=cloud.deployed_configuration()
    )
    assert described["ProductionVariants"] == production
    assert cloud.sm("deploy", "ships", "--remove-shadow").code == 1
    cloud.succeed("delete", "ships", "--yes")
    assert not any(cloud.list_resources().values())


def test_a_shadow_needs_an_endpoint_with_instances_that_serves(cloud: FakeAccount) -> None:
    assert cloud.sm("deploy", "ships", "--remove-shadow").code == 1
    assert cloud.sm("deploy", "ships", "--image", IMAGE, "--shadow", IMAGE).code in (1, 2)
    cloud.deployed("--serverless", "1024:5")
    assert cloud.sm("deploy", "ships", "--shadow", IMAGE).code == 1
