"""Updates of a deployment in place, and rollbacks."""

from __future__ import annotations

import json

from tests.support.deploy_account import FakeAccount, write_repository


def change_weight(cloud: FakeAccount, weight: str) -> None:
    write_repository(cloud.repository, weight)


def test_an_update_makes_a_configuration_and_rollback_switches_between_the_two(cloud: FakeAccount) -> None:
    assert cloud.deploy().code == 0
    first = cloud.deployed_configuration()
    change_weight(cloud, "2")
    assert cloud.deploy().code == 0
    second = cloud.deployed_configuration()
    assert second != first and "DeploymentConfig" not in cloud.proxy.bodies["UpdateEndpoint"]
    done = cloud.sm("deploy", "ships", "--rollback", "--dry-run")
    assert (
        done.code == 0
        and "aws sagemaker update-endpoint" in done.out
        and cloud.deployed_configuration() == second
    )
    done = cloud.sm("deploy", "ships", "--rollback")
    assert done.code == 0 and first in done.err
    assert cloud.deployed_configuration() == first
    assert cloud.sm("deploy", "ships", "--rollback").code == 0
    assert cloud.deployed_configuration() == second


def test_rollback_without_a_previous_version_is_an_error(cloud: FakeAccount) -> None:
    assert cloud.sm("deploy", "ships", "--rollback").code == 1
    assert cloud.deploy().code == 0
    assert cloud.sm("deploy", "ships", "--rollback").code == 1


def test_canary_and_linear_updates_use_the_chosen_alarms(cloud: FakeAccount) -> None:
    assert cloud.deploy().code == 0
    change_weight(cloud, "2")
    canary = ("--canary", "10", "--bake", "120", "--alarm", "errors", "--alarm", "latency:250")
    done = cloud.deploy(*canary)
    assert done.code == 0, done.err
    deployment = cloud.proxy.bodies["UpdateEndpoint"]["DeploymentConfig"]
    assert deployment["BlueGreenUpdatePolicy"]["TrafficRoutingConfiguration"] == {
        "Type": "CANARY",
        "WaitIntervalInSeconds": 120,
        "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 10},
    }
    assert deployment["BlueGreenUpdatePolicy"]["TerminationWaitInSeconds"] == 120
    alarms = [{"AlarmName": "ships-errors"}, {"AlarmName": "ships-latency"}]
    assert deployment["AutoRollbackConfiguration"] == {"Alarms": alarms}
    latency = cloud.client("cloudwatch").describe_alarms(AlarmNames=["ships-latency"])["MetricAlarms"][0]
    assert latency["MetricName"] == "ModelLatency" and latency["Threshold"] == 250_000
    change_weight(cloud, "3")
    assert cloud.deploy("--linear", "20").code == 0
    steps = cloud.proxy.bodies["UpdateEndpoint"]["DeploymentConfig"]["BlueGreenUpdatePolicy"]
    assert steps["TrafficRoutingConfiguration"]["LinearStepSize"]["Value"] == 20
    change_weight(cloud, "4")
    assert "'other'" in cloud.deploy("--alarm", "other").err


def test_a_rolling_update_is_a_field_and_takes_the_place_of_blue_green(cloud: FakeAccount) -> None:
    assert cloud.deploy().code == 0
    change_weight(cloud, "2")
    size = {"Type": "CAPACITY_PERCENT", "Value": 20}
    policy = {"MaximumBatchSize": size, "WaitIntervalInSeconds": 60}
    field = f"DeploymentConfig.RollingUpdatePolicy={json.dumps(policy)}"
    done = cloud.deploy("--set", field, "--alarm", "errors")
    assert done.code == 0, done.err
    deployment = cloud.proxy.bodies["UpdateEndpoint"]["DeploymentConfig"]
    assert deployment["RollingUpdatePolicy"] == policy and "BlueGreenUpdatePolicy" not in deployment
    assert deployment["AutoRollbackConfiguration"] == {"Alarms": [{"AlarmName": "ships-errors"}]}


def test_an_update_keeps_autoscaling_and_the_number_of_instances(cloud: FakeAccount) -> None:
    assert cloud.deploy("--autoscale", "2:6", "--target-invocations", "60").code == 0
    change_weight(cloud, "2")
    assert cloud.deploy().code == 0
    assert cloud.proxy.bodies["UpdateEndpoint"]["RetainAllVariantProperties"] is True
    assert cloud.list_resources()["targets"] == ["endpoint/ships/variant/AllTraffic"]


def test_new_tags_alone_make_no_new_version(cloud: FakeAccount) -> None:
    assert cloud.deploy("--tags", "team=sea").code == 0
    cloud.proxy.changes = []
    assert cloud.deploy("--tags", "team=land").code == 0
    assert cloud.proxy.changes == ["AddTags"]


def test_a_failed_update_leaves_the_old_version_and_nothing_of_the_new(cloud: FakeAccount) -> None:
    assert cloud.deploy().code == 0
    before = cloud.list_resources()
    change_weight(cloud, "2")
    reason = "The alarm ships-errors is in ALARM state"
    cloud.proxy.changes = []
    cloud.proxy.endpoint_states = [
        {"EndpointStatus": "RollingBack"},
        {
            "EndpointStatus": "InService",
            "EndpointConfigName": before["configurations"][0],
            "FailureReason": reason,
        },
    ]
    cloud.proxy.rolls_back = True
    done = cloud.deploy()
    assert done.code == 1
    assert reason in done.err
    after = cloud.list_resources()
    assert after | {"archives": []} == before | {"archives": []}
    assert len(after["archives"]) == 2, "the archive is for the next run"


def test_an_endpoint_that_sm_did_not_make_is_never_changed(cloud: FakeAccount) -> None:
    assert cloud.deploy(name="ships").code == 0
    sagemaker = cloud.client("sagemaker")
    sagemaker.create_endpoint(
        EndpointName="theirs", EndpointConfigName=cloud.deployed_configuration(), Tags=[]
    )
    cloud.proxy.changes = []
    assert cloud.deploy(name="theirs").code == 1
    assert cloud.sm("delete", "theirs", "--yes").code == 1
    assert "CreateModel" not in cloud.proxy.changes and "DeleteEndpoint" not in cloud.proxy.changes
