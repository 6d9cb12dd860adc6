"""A deployment that is there takes on another content in place, and goes back."""

from __future__ import annotations

from tests.support.deploy_account import Cloud, repository


def change(cloud: Cloud, weight: str) -> None:
    repository(cloud.repository, weight)


def test_an_update_is_a_new_configuration_and_rollback_goes_back_and_forth(cloud: Cloud) -> None:
    assert cloud.deploy().code == 0
    first = cloud.serving()
    change(cloud, "2")
    assert cloud.deploy().code == 0
    second = cloud.serving()
    assert second != first and "DeploymentConfig" not in cloud.proxy.bodies["UpdateEndpoint"]
    done = cloud.sm("deploy", "ships", "--rollback", "--dry-run")
    assert done.code == 0 and "aws sagemaker update-endpoint" in done.out and cloud.serving() == second
    done = cloud.sm("deploy", "ships", "--rollback")
    assert done.code == 0 and f"serves {first} again" in done.err
    assert cloud.serving() == first
    assert cloud.sm("deploy", "ships", "--rollback").code == 0
    assert cloud.serving() == second


def test_without_another_version_there_is_nothing_to_go_back_to(cloud: Cloud) -> None:
    assert "there is no endpoint 'ships' in eu-west-1" in cloud.sm("deploy", "ships", "--rollback").err
    assert cloud.deploy().code == 0
    done = cloud.sm("deploy", "ships", "--rollback")
    assert done.code == 1 and "nothing to go back to" in done.err


def test_canary_and_linear_steps_go_with_the_alarms_of_your_choice(cloud: Cloud) -> None:
    assert cloud.deploy().code == 0
    change(cloud, "2")
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
    change(cloud, "3")
    assert cloud.deploy("--linear", "20").code == 0
    steps = cloud.proxy.bodies["UpdateEndpoint"]["DeploymentConfig"]["BlueGreenUpdatePolicy"]
    assert steps["TrafficRoutingConfiguration"]["LinearStepSize"]["Value"] == 20
    change(cloud, "4")
    assert "there is no alarm 'other'" in cloud.deploy("--alarm", "other").err


def test_autoscaling_and_its_number_of_instances_stay(cloud: Cloud) -> None:
    assert cloud.deploy("--autoscale", "2:6", "--target-invocations", "60").code == 0
    change(cloud, "2")
    assert cloud.deploy().code == 0
    assert cloud.proxy.bodies["UpdateEndpoint"]["RetainAllVariantProperties"] is True
    assert cloud.things()["targets"] == ["endpoint/ships/variant/AllTraffic"]


def test_new_tags_alone_are_no_new_version(cloud: Cloud) -> None:
    assert cloud.deploy("--tags", "team=sea").code == 0
    cloud.proxy.changes = []
    assert cloud.deploy("--tags", "team=land").code == 0
    assert cloud.proxy.changes == ["AddTags"]


def test_an_update_that_fails_leaves_the_old_version_and_nothing_of_the_new(cloud: Cloud) -> None:
    assert cloud.deploy().code == 0
    before = cloud.things()
    change(cloud, "2")
    reason = "The alarm ships-errors is in ALARM state"
    cloud.proxy.changes = []
    cloud.proxy.states = [
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
    assert reason in done.err and "the old one serves again" in done.err
    assert "Removed again: configuration, model." in done.err
    after = cloud.things()
    assert after | {"archives": []} == before | {"archives": []}
    assert len(after["archives"]) == 2, "the archive is for the next run"


def test_an_endpoint_of_somebody_else_is_left_alone(cloud: Cloud) -> None:
    assert cloud.deploy(name="ships").code == 0
    sagemaker = cloud.client("sagemaker")
    sagemaker.create_endpoint(EndpointName="theirs", EndpointConfigName=cloud.serving(), Tags=[])
    cloud.proxy.changes = []
    assert "it is left alone" in cloud.deploy(name="theirs").err
    assert "it is left alone" in cloud.sm("delete", "theirs", "--yes").err
    assert "CreateModel" not in cloud.proxy.changes and "DeleteEndpoint" not in cloud.proxy.changes
