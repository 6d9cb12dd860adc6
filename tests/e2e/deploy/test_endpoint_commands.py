"""``sm status``, ``logs`` and ``delete``."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.e2e.deploy.account import BUCKET, IMAGE, FakeAccount, write_repository
from trireme_tools.deploy import endpoint_logs, images
from trireme_tools.deploy.model_data import url_of

SCALED = ("--autoscale", "1:4", "--target-invocations", "60", "--alarm", "errors")


def status(cloud: FakeAccount) -> dict[str, str]:
    """Return the rows of ``sm status`` by their title."""
    return {line.split("  ")[0]: line for line in cloud.succeed("status", "ships").out.splitlines()}


def put_metrics(cloud: FakeAccount, variant: str, **values: float) -> None:
    dimensions = {"EndpointName": "ships", "VariantName": variant}
    cloud.put_metrics("AWS/SageMaker", dimensions, **values)


def test_status_shows_what_is_deployed(cloud: FakeAccount) -> None:
    assert cloud.sm("status", "ships").code == 1
    cloud.deployed(*SCALED)
    first = cloud.deployed_configuration()
    write_repository(cloud.repository, "2")
    cloud.deployed()
    put_metrics(cloud, "AllTraffic", Invocations=1234)
    rows = status(cloud)
    assert "InService" in rows["state"]
    assert cloud.deployed_configuration() in rows["configuration"] and first in rows["before it"]
    assert IMAGE in rows["image"] and f"s3://{BUCKET}/trireme/ships/" in rows["model data"]
    assert {"1", "4"} <= {*rows["autoscaling"].split()} and "ships-errors" in rows["alarm"]
    assert "1,234" in rows["requests, last hour"]


@pytest.mark.exhaustive
def test_status_compares_production_and_its_shadow(cloud: FakeAccount, tmp_path: Path) -> None:
    cloud.deployed()
    write_repository(tmp_path / "next", "2")
    cloud.succeed("deploy", "ships", "--shadow", str(tmp_path / "next"), "--percent", "20")
    put_metrics(cloud, "AllTraffic", ModelLatency=12_000, Invocation5XXErrors=1)
    put_metrics(cloud, "shadow", ModelLatency=9_000, Invocation5XXErrors=3)
    rows = status(cloud)
    assert "20%" in rows["shadow"]
    assert rows["mean time in the box, last hour"].split()[-4:] == ["12.0", "ms", "9.0", "ms"]
    assert rows["failed in the box, last hour"].split()[-2:] == ["1", "3"]


@pytest.mark.exhaustive
def test_alarms_watch_the_boxs_metrics_and_are_deleted_with_the_endpoint(cloud: FakeAccount) -> None:
    cloud.deployed("--alarms", "2:750")
    alarms = {"ships-error-rate", "ships-p99"}
    assert {*cloud.list_resources()["alarms"]} == alarms
    # The numbers that CloudWatch reads from a line of the box's log.
    cloud.put_metrics("Trireme", {"Endpoint": "ships"}, Requests=321, Latency=12.5)
    shown = {word.rstrip(":") for word in cloud.succeed("status", "ships").out.split()}
    assert alarms | {"321", "12.5"} <= shown
    cloud.succeed("delete", "ships", "--yes")
    assert not any(cloud.list_resources().values())


def test_the_policies_of_a_deployed_endpoint_need_no_options(cloud: FakeAccount) -> None:
    cloud.deployed()
    model = cloud.proxy.bodies["CreateModel"]
    role = json.loads(cloud.succeed("iam", "ships").out)["role"]
    assert role["arn"] == model["ExecutionRoleArn"]
    (read_models,) = (each for each in role["policy"]["Statement"] if each["Sid"] == "ReadModels")
    assert url_of(model["PrimaryContainer"]).removeprefix("s3://") in read_models["Resource"]
    assert cloud.sm("iam", "dogs").code == 1


def test_status_shows_the_metrics_of_a_multi_model_endpoint_that_exist(cloud: FakeAccount) -> None:
    cloud.deployed()
    variant = {"EndpointName": "ships", "VariantName": "AllTraffic"}
    for loaded, percent in ((3, 120), (5, 140)):
        metrics = {"LoadedModelCount": loaded, "CPUUtilization": percent}
        cloud.put_metrics("/aws/sagemaker/Endpoints", variant, **metrics)
    for hit, microseconds in ((1, 2_000_000), (0.5, 1_000_000)):
        put_metrics(cloud, "AllTraffic", ModelCacheHit=hit, ModelLoadingWaitTime=microseconds)
    shown = {title.removesuffix(", last hour"): row.split() for title, row in status(cloud).items()}
    expected = {
        "LoadedModelCount": "4.0",
        "ModelCacheHit": "75.0%",
        "ModelLoadingWaitTime": "1,500.0",
        "CPUUtilization": "130.0",
    }
    for name, value in expected.items():
        assert value in shown[name]
    assert {"GPUUtilization", "MemoryUtilization"}.isdisjoint(shown)


def test_logs_prints_the_last_lines(cloud: FakeAccount) -> None:
    assert cloud.sm("logs", "ships").code == 1
    cloud.put_log_lines("one", "two", "three")
    assert cloud.succeed("logs", "ships", "-n", "2").out == "two\nthree\n"


def test_followed_logs_print_each_new_line_once(cloud: FakeAccount) -> None:
    cloud.put_log_lines("one")
    lines = endpoint_logs.follow_lines(
        cloud.account(), "ships", time.time(), wait=lambda _: cloud.put_log_lines("two", instance="i-1")
    )
    assert [next(lines).split()[1] for _ in range(2)] == ["one", "two"]


def test_delete_lists_everything_asks_and_removes_it(cloud: FakeAccount) -> None:
    cloud.deployed(*SCALED)
    write_repository(cloud.repository, "2")
    cloud.deployed()
    before = cloud.list_resources()
    done = cloud.sm("delete", "ships", stdin="no\n")
    assert done.code == 1 and cloud.list_resources() == before
    for thing in (*before["models"], *before["configurations"], *before["archives"], *before["alarms"]):
        assert thing in done.out
    assert cloud.sm("delete", "ships").code == 1 and cloud.list_resources() == before, "nobody answers"
    assert cloud.sm("delete", "ships", stdin="ships\n").code == 0
    assert not any(cloud.list_resources().values())
    assert cloud.sm("delete", "ships", "--yes").code == 1


def test_delete_removes_nothing_of_another_deployment(cloud: FakeAccount) -> None:
    cloud.deployed()
    cloud.deployed(name="ships-2")
    archive = url_of(cloud.proxy.bodies["CreateModel"]["PrimaryContainer"])
    cloud.succeed("delete", "ships", "--yes")
    things = cloud.list_resources()
    assert things["endpoints"] == ["ships-2"] and {len(things[kind]) for kind in things} == {0, 1}
    assert archive.endswith(things["archives"][0])
    cloud.deployed(data=archive, name="boats")
    cloud.succeed("delete", "boats", "--yes")
    assert cloud.list_resources()["archives"], "an archive that was named by its URL is not ours"


def test_the_prebuilt_image_is_deployed_by_the_same_command(cloud: FakeAccount) -> None:
    cloud.deployed("--image", images.uri("eu-west-1"))
    assert cloud.list_resources()["endpoints"] == ["ships"]
