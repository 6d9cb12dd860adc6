"""Updates of a deployment in place, and rollbacks."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.deploy.account import IMAGE, FakeAccount, write_repository


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


SCALED = ("--autoscale", "1:4", "--target-invocations", "60", "--target-cpu", "70")


def policies(cloud: FakeAccount) -> dict[str, float]:
    """Return the targets of the endpoint's scaling policies."""
    rows = cloud.client("application-autoscaling").describe_scaling_policies(ServiceNamespace="sagemaker")
    configuration = "TargetTrackingScalingPolicyConfiguration"
    return {row["PolicyName"]: row[configuration]["TargetValue"] for row in rows["ScalingPolicies"]}


def scaling_tag(cloud: FakeAccount) -> str | None:
    arn = cloud.client("sagemaker").describe_endpoint(EndpointName="ships")["EndpointArn"]
    tags = cloud.client("sagemaker").list_tags(ResourceArn=arn)["Tags"]
    return {tag["Key"]: tag["Value"] for tag in tags}.get("trireme:scaling")


def scaling_calls(cloud: FakeAccount) -> list[str]:
    names = ("DeregisterScalableTarget", "UpdateEndpoint", "RegisterScalableTarget")
    return [change for change in cloud.proxy.changes if change in names]


def test_another_instance_type_of_a_scaled_endpoint_takes_the_autoscaling_away_and_sets_it_again(
    cloud: FakeAccount,
) -> None:
    cloud.deployed(*SCALED)
    before = policies(cloud)
    assert before == {"ships-target": 60.0, "ships-cpu": 70.0}
    for command in (("--instance-type", "ml.c5.xlarge"), ("--rollback",)):
        cloud.proxy.changes = []
        if command[0] == "--rollback":
            cloud.succeed("deploy", "ships", *command)
        else:
            cloud.deployed(*command)
        assert scaling_calls(cloud) == [
            "DeregisterScalableTarget",
            "UpdateEndpoint",
            "RegisterScalableTarget",
        ]
        assert policies(cloud) == before and not scaling_tag(cloud)
    cloud.proxy.changes = []
    write_repository(cloud.repository, "2")
    cloud.deployed()
    assert scaling_calls(cloud) == ["UpdateEndpoint"], "other models change no instance type"


def test_autoscaling_that_an_update_took_away_comes_back_after_a_failure_and_after_a_killed_run(
    cloud: FakeAccount,
) -> None:
    cloud.deployed(*SCALED)
    before = policies(cloud)
    cloud.proxy.fail_updates(cloud.deployed_configuration(), "no capacity")
    assert cloud.deploy("--instance-type", "ml.c5.xlarge").code == 1
    assert policies(cloud) == before and not scaling_tag(cloud)
    # A run that ends between the two calls leaves the tag; the next one reads it.
    cloud.client("application-autoscaling").deregister_scalable_target(
        ServiceNamespace="sagemaker",
        ResourceId="endpoint/ships/variant/AllTraffic",
        ScalableDimension="sagemaker:variant:DesiredInstanceCount",
    )
    arn = cloud.client("sagemaker").describe_endpoint(EndpointName="ships")["EndpointArn"]
    tag = {"Key": "trireme:scaling", "Value": "1:4 target=60.0 cpu=70.0"}
    cloud.client("sagemaker").add_tags(ResourceArn=arn, Tags=[tag])
    cloud.proxy.rolls_back, cloud.proxy.endpoint_states = False, []
    cloud.deployed()
    assert policies(cloud) == before and not scaling_tag(cloud)


def test_autoscaling_that_sm_deploy_could_not_make_again_stays(cloud: FakeAccount) -> None:
    cloud.deployed(*SCALED)
    cloud.client("application-autoscaling").put_scheduled_action(
        ServiceNamespace="sagemaker",
        ScheduledActionName="nights",
        ResourceId="endpoint/ships/variant/AllTraffic",
        ScalableDimension="sagemaker:variant:DesiredInstanceCount",
        Schedule="cron(0 20 * * ? *)",
        ScalableTargetAction={"MinCapacity": 1, "MaxCapacity": 1},
    )
    cloud.proxy.changes = []
    done = cloud.deploy("--instance-type", "ml.c5.xlarge")
    assert done.code == 1 and "nights" in done.err
    assert cloud.proxy.changes == [] and cloud.list_resources()["targets"]


def test_what_sagemaker_would_refuse_of_what_serves_ends_before_anything_is_sent(cloud: FakeAccount) -> None:
    cloud.deployed(*SCALED)
    cloud.deployed("--serverless", "2048:5", name="serverless")
    write_repository(cloud.repository, "2")
    cloud.deployed(name="serverless")  # with instances
    cloud.deployed("--mme", name="many")
    cloud.proxy.changes = []
    ours = ("deploy", "ships", "--image", IMAGE, "--model-data", str(cloud.repository))
    new = ("deploy", "new", *ours[2:])
    for command in (
        (*ours, "--serverless", "2048:5"),
        (*ours, "--instance-type", "ml.t2.medium"),
        (*ours, "--instance-type", "ml.c5.large", "--env", "MY-NAME=1"),
        (*new, "--instance-type", "ml.t2.medium", *SCALED),
        (*new, "--serverless", "2048:5", "--canary", "10"),
        ("deploy", "serverless", "--rollback"),
        ("deploy", "many", "--shadow", str(cloud.repository)),
    ):
        done = cloud.sm(*command)
        assert (done.code, cloud.proxy.changes) == (1, []), done.err


def test_an_endpoint_that_sm_did_not_make_is_never_changed(cloud: FakeAccount) -> None:
    cloud.deployed()
    theirs = {"EndpointName": "theirs", "EndpointConfigName": cloud.deployed_configuration()}
    cloud.client("sagemaker").create_endpoint(**theirs, Tags=[])
    cloud.proxy.changes = []
    assert cloud.deploy(name="theirs").code == 1
    assert cloud.sm("delete", "theirs", "--yes").code == 1
    assert not {"CreateModel", "DeleteEndpoint"} & {*cloud.proxy.changes}
