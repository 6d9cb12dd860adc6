"""Updates of a deployment in place, and rollbacks."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.deploy.account import FakeAccount, write_repository


def update(cloud: FakeAccount, weight: str, *options: str) -> Any:
    """Deploy another weight, and return how the endpoint changes to it."""
    write_repository(cloud.repository, weight)
    cloud.deployed(*options)
    return cloud.proxy.bodies["UpdateEndpoint"].get("DeploymentConfig")


def test_an_update_makes_a_configuration_and_rollback_switches_between_the_two(cloud: FakeAccount) -> None:
    rollback = ("deploy", "ships", "--rollback")
    assert cloud.sm(*rollback).code == 1
    cloud.deployed()
    assert cloud.sm(*rollback).code == 1, "there is none before it"
    first = cloud.deployed_configuration()
    assert update(cloud, "2") is None
    second = cloud.deployed_configuration()
    cloud.proxy.changes = []
    assert "update-endpoint" in cloud.succeed(*rollback, "--dry-run").out and cloud.proxy.changes == []
    for expected in (first, second):
        cloud.succeed(*rollback)
        assert cloud.deployed_configuration() == expected


def test_canary_and_linear_updates_use_the_chosen_alarms(cloud: FakeAccount) -> None:
    cloud.deployed()
    alarms = ("--alarm", "errors", "--alarm", "latency:250")
    deployment = update(cloud, "2", "--canary", "10", "--bake", "120", *alarms)
    routing = {"Type": "CANARY", "WaitIntervalInSeconds": 120}
    size = {"CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 10}}
    assert deployment["BlueGreenUpdatePolicy"]["TrafficRoutingConfiguration"] == {**routing, **size}
    assert deployment["BlueGreenUpdatePolicy"]["TerminationWaitInSeconds"] == 120
    chosen = [{"AlarmName": "ships-errors"}, {"AlarmName": "ships-latency"}]
    assert deployment["AutoRollbackConfiguration"] == {"Alarms": chosen}
    (latency,) = cloud.client("cloudwatch").describe_alarms(AlarmNames=["ships-latency"])["MetricAlarms"]
    assert (latency["MetricName"], latency["Threshold"]) == ("ModelLatency", 250_000)
    steps = update(cloud, "3", "--linear", "20")["BlueGreenUpdatePolicy"]["TrafficRoutingConfiguration"]
    assert steps["LinearStepSize"]["Value"] == 20
    assert cloud.deploy("--alarm", "other").code == 1


def test_a_rolling_update_is_a_field_and_takes_the_place_of_blue_green(cloud: FakeAccount) -> None:
    cloud.deployed()
    size = {"Type": "CAPACITY_PERCENT", "Value": 20}
    policy = {"MaximumBatchSize": size, "WaitIntervalInSeconds": 60}
    field = f"DeploymentConfig.RollingUpdatePolicy={json.dumps(policy)}"
    assert update(cloud, "2", "--set", field, "--alarm", "errors") == {
        "RollingUpdatePolicy": policy,
        "AutoRollbackConfiguration": {"Alarms": [{"AlarmName": "ships-errors"}]},
    }


def test_an_update_keeps_autoscaling_and_new_tags_alone_make_no_version(cloud: FakeAccount) -> None:
    cloud.deployed("--autoscale", "2:6", "--target-invocations", "60", "--tags", "team=sea")
    update(cloud, "2", "--tags", "team=sea")
    assert cloud.proxy.bodies["UpdateEndpoint"]["RetainAllVariantProperties"] is True
    assert cloud.list_resources()["targets"] == ["endpoint/ships/variant/AllTraffic"]
    cloud.proxy.changes = []
    cloud.deployed("--tags", "team=land")
    assert cloud.proxy.changes == ["AddTags"]


def test_an_endpoint_that_sm_did_not_make_is_never_changed(cloud: FakeAccount) -> None:
    cloud.deployed()
    theirs = {"EndpointName": "theirs", "EndpointConfigName": cloud.deployed_configuration()}
    cloud.client("sagemaker").create_endpoint(**theirs, Tags=[])
    cloud.proxy.changes = []
    assert cloud.deploy(name="theirs").code == 1
    assert cloud.sm("delete", "theirs", "--yes").code == 1
    assert not {"CreateModel", "DeleteEndpoint"} & {*cloud.proxy.changes}
