"""Inference components: made on an endpoint for several, updated, scaled to zero and back, removed."""

from __future__ import annotations

from typing import Any

from tests.support.aws_proxy import NO_MODEL
from tests.support.deploy_account import IMAGE, Done, FakeAccount, write_repository

SIZE = ("--cpus", "2", "--memory", "8192", "--gpus", "1")


def deploy(cloud: FakeAccount, *options: str, name: str = "ships") -> Done:
    instances = ("--instance-type", "ml.g4dn.xlarge", "--image", IMAGE, "--model-data", str(cloud.repository))
    return cloud.sm("deploy", name, "--component", *instances, *SIZE, *options)


def described(cloud: FakeAccount, name: str = "ships") -> dict[str, Any]:
    return cloud.proxy.components[name]


def test_a_component_gets_an_endpoint_without_a_model_and_its_answers_are_compared(
    cloud: FakeAccount,
) -> None:
    done = deploy(cloud, "--copies", "2", "--set", "Specification.DataCacheConfig.EnableCaching=true")
    assert done.code == 0, done.err
    assert "ship  equal" in done.out
    host = cloud.proxy.bodies["CreateEndpointConfig"]
    (variant,) = host["ProductionVariants"]
    scaling = {"Status": "ENABLED", "MinInstanceCount": 1, "MaxInstanceCount": 2}
    assert variant["ManagedInstanceScaling"] == scaling and variant["ModelName"] == NO_MODEL
    assert host["ExecutionRoleArn"] and variant["RoutingConfig"]
    component, (model,) = described(cloud), cloud.list_resources()["models"]
    assert (component["EndpointName"], component["RuntimeConfig"]["DesiredCopyCount"]) == ("ships", 2)
    assert component["Specification"]["ModelName"] == model
    assert component["Specification"]["DataCacheConfig"] == {"EnableCaching": True}
    needs = component["Specification"]["ComputeResourceRequirements"]
    assert needs == {
        "NumberOfCpuCoresRequired": 2,
        "MinMemoryRequiredInMb": 8192,
        "NumberOfAcceleratorDevicesRequired": 1,
    }
    assert (
        component["Specification"]["StartupParameters"]["ContainerStartupHealthCheckTimeoutInSeconds"] == 660
    )


def test_the_same_again_changes_nothing_and_another_model_is_a_rolling_update(cloud: FakeAccount) -> None:
    assert deploy(cloud, "--copies", "2").code == 0
    cloud.proxy.changes = []
    assert deploy(cloud).code == 0
    assert cloud.proxy.changes == [], "two copies stay two"
    write_repository(cloud.repository, "2")
    assert deploy(cloud, "--bake", "60").code == 0
    update = cloud.proxy.bodies["UpdateInferenceComponent"]
    policy = update["DeploymentConfig"]["RollingUpdatePolicy"]
    assert policy == {"MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 1}, "WaitIntervalInSeconds": 60}
    assert described(cloud)["RuntimeConfig"]["DesiredCopyCount"] == 2


def test_a_component_that_has_failed_is_made_again(cloud: FakeAccount) -> None:
    assert deploy(cloud).code == 0
    described(cloud)["InferenceComponentStatus"] = "Failed"
    cloud.proxy.changes = []
    assert deploy(cloud).code == 0
    assert cloud.proxy.changes == ["DeleteInferenceComponent", "CreateInferenceComponent"]
    assert described(cloud)["InferenceComponentStatus"] == "InService"


def test_copies_end_and_start_again_by_hand_or_by_the_alarm_on_refused_requests(cloud: FakeAccount) -> None:
    scaling = ("--autoscale", "0:4", "--target-invocations", "60")
    assert deploy(cloud, *scaling).code == 0
    (variant,) = cloud.proxy.bodies["CreateEndpointConfig"]["ProductionVariants"]
    assert variant["ManagedInstanceScaling"]["MinInstanceCount"] == 0
    (alarm,) = cloud.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert alarm["MetricName"] == "NoCapacityInvocationFailures"
    assert alarm["Dimensions"] == [{"Name": "InferenceComponentName", "Value": "ships"}]
    assert "policyName/ships-wake" in alarm["AlarmActions"][0]
    assert cloud.list_resources()["targets"] == ["endpoint/ships/variant/copies"], (
        "as the proxy says it to moto"
    )
    done = deploy(cloud, "--copies", "0")
    assert done.code == 0, done.err
    assert described(cloud)["RuntimeConfig"]["DesiredCopyCount"] == 0
    assert deploy(cloud, "--copies", "1").code == 0
    assert described(cloud)["RuntimeConfig"]["DesiredCopyCount"] == 1


def test_several_share_an_endpoint_which_is_removed_last(cloud: FakeAccount) -> None:
    assert deploy(cloud).code == 0
    assert deploy(cloud, "--endpoint", "ships", name="boats").code == 0
    assert cloud.list_resources()["endpoints"] == ["ships"]
    status = cloud.sm("status", "ships")
    assert status.code == 0 and "boats: InService" in status.out
    refused = cloud.sm("delete", "ships", "--yes")
    assert refused.code == 1 and "boats" in refused.err
    assert cloud.sm("delete", "boats", "--yes").code == 0
    assert list(cloud.proxy.components) == ["ships"] and cloud.list_resources()["endpoints"] == ["ships"]
    assert cloud.sm("delete", "ships", "--yes").code == 0
    assert not cloud.proxy.components and not any(cloud.list_resources().values())


def test_what_cannot_be_a_component_is_refused_before_any_change(cloud: FakeAccount) -> None:
    assert cloud.deploy(name="alone").code == 0
    cloud.proxy.changes = []
    for options in (("--mme",), ("--async", "s3://answers/out"), ("--canary", "10"), ("--target-cpu", "50")):
        assert deploy(cloud, "--autoscale", "1:2", *options).code == 1, options
    assert cloud.deploy("--copies", "2").code == 1
    instances = ("--image", IMAGE, "--model-data", str(cloud.repository))
    assert cloud.sm("deploy", "ships", "--component", *instances).code == 1, "no memory"
    assert deploy(cloud, "--endpoint", "alone").code == 1, "it has a model of its own"
    assert deploy(cloud, "--endpoint", "nowhere").code == 1
    assert not {*cloud.proxy.changes} - {"PutObject"} and not cloud.proxy.components


def test_a_dry_run_prints_the_calls(cloud: FakeAccount) -> None:
    done = deploy(cloud, "--dry-run")
    assert done.code == 0, done.err
    calls = [line.split()[2] for line in done.out.splitlines() if line.startswith("aws sagemaker")]
    assert calls == [
        "create-endpoint-config",
        "create-endpoint",
        "create-model",
        "create-inference-component",
    ]
    assert cloud.proxy.changes == []
