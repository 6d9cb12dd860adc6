"""Inference components: made on an endpoint for several, updated, scaled to zero and back, removed."""

from __future__ import annotations

from tests.e2e.deploy.account import IMAGE, Done, FakeAccount, write_repository

SIZE = ("--cpus", "2", "--memory", "8192", "--gpus", "1")


def deploy(cloud: FakeAccount, *options: str, name: str = "ships") -> Done:
    return cloud.deploy("--component", *SIZE, *options, name=name)


def copies(cloud: FakeAccount) -> int:
    return int(cloud.proxy.components["ships"]["RuntimeConfig"]["DesiredCopyCount"])


def test_a_component_gets_an_endpoint_without_a_model_and_a_rolling_update(cloud: FakeAccount) -> None:
    done = deploy(cloud, "--copies", "2", "--set", "Specification.DataCacheConfig.EnableCaching=true")
    assert done.code == 0 and done.equal == {"ship"}, done.err
    (variant,) = cloud.created()["ProductionVariants"]
    scaling = {"Status": "ENABLED", "MinInstanceCount": 1, "MaxInstanceCount": 2}
    assert variant["ManagedInstanceScaling"] == scaling and "ModelName" not in variant
    assert cloud.created()["ExecutionRoleArn"] and variant["RoutingConfig"]
    component, (model,) = cloud.proxy.components["ships"], cloud.list_resources()["models"]
    assert (component["EndpointName"], copies(cloud)) == ("ships", 2)
    timeout = component["Specification"].pop("StartupParameters")
    assert timeout["ContainerStartupHealthCheckTimeoutInSeconds"] == 660
    assert component["Specification"] == {
        "ModelName": model,
        "DataCacheConfig": {"EnableCaching": True},
        "ComputeResourceRequirements": {
            "NumberOfCpuCoresRequired": 2,
            "MinMemoryRequiredInMb": 8192,
            "NumberOfAcceleratorDevicesRequired": 1,
        },
    }
    write_repository(cloud.repository, "2")
    assert deploy(cloud, "--bake", "60").code == 0
    update = cloud.proxy.bodies["UpdateInferenceComponent"]["DeploymentConfig"]["RollingUpdatePolicy"]
    assert update == {"MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 1}, "WaitIntervalInSeconds": 60}
    cloud.proxy.changes = []
    assert deploy(cloud).code == 0
    assert cloud.proxy.changes == [] and copies(cloud) == 2


def test_a_component_that_has_failed_is_made_again(cloud: FakeAccount) -> None:
    assert deploy(cloud).code == 0
    cloud.proxy.components["ships"]["InferenceComponentStatus"] = "Failed"
    cloud.proxy.changes = []
    assert deploy(cloud).code == 0
    assert cloud.proxy.changes == ["DeleteInferenceComponent", "CreateInferenceComponent"]
    assert cloud.proxy.components["ships"]["InferenceComponentStatus"] == "InService"


def test_copies_end_and_start_again_by_hand_or_by_the_alarm_on_refused_requests(cloud: FakeAccount) -> None:
    assert deploy(cloud, "--autoscale", "0:4", "--target-invocations", "60").code == 0
    (variant,) = cloud.created()["ProductionVariants"]
    assert variant["ManagedInstanceScaling"]["MinInstanceCount"] == 0
    (alarm,) = cloud.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert alarm["MetricName"] == "NoCapacityInvocationFailures"
    assert alarm["Dimensions"] == [{"Name": "InferenceComponentName", "Value": "ships"}]
    assert "policyName/ships-wake" in alarm["AlarmActions"][0]
    # As the proxy says it to moto.
    assert cloud.list_resources()["targets"] == ["endpoint/ships/variant/copies"]
    for count in (0, 1):
        assert deploy(cloud, "--copies", str(count)).code == 0
        assert copies(cloud) == count


def test_several_share_an_endpoint_which_is_removed_last(cloud: FakeAccount) -> None:
    assert deploy(cloud).code == 0
    assert deploy(cloud, "--endpoint", "ships", name="boats").code == 0
    assert cloud.list_resources()["endpoints"] == ["ships"]
    assert "boats" in cloud.succeed("status", "ships").out
    assert cloud.sm("delete", "ships", "--yes").code == 1
    cloud.succeed("delete", "boats", "--yes")
    assert list(cloud.proxy.components) == ["ships"] and cloud.list_resources()["endpoints"] == ["ships"]
    cloud.succeed("delete", "ships", "--yes")
    assert not cloud.proxy.components and not any(cloud.list_resources().values())


def test_what_cannot_be_a_component_is_refused_before_any_change(cloud: FakeAccount) -> None:
    cloud.deployed(name="alone")
    cloud.proxy.changes = []
    for options in (("--mme",), ("--async", "s3://answers/out"), ("--canary", "10"), ("--target-cpu", "50")):
        assert deploy(cloud, "--autoscale", "1:2", *options).code == 1, options
    assert cloud.deploy("--copies", "2").code == 1
    instances = ("--image", IMAGE, "--model-data", str(cloud.repository))
    assert cloud.sm("deploy", "ships", "--component", *instances).code == 1, "no memory"
    assert deploy(cloud, "--endpoint", "alone").code == 1, "it has a model of its own"
    assert deploy(cloud, "--endpoint", "nowhere").code == 1
    assert not {*cloud.proxy.changes} - {"PutObject"} and not cloud.proxy.components
