"""``sm status``, ``logs``, ``delete`` and ``images``."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

from tests.support.deploy_account import BUCKET, IMAGE, FakeAccount, write_repository
from trireme_tools.deploy import endpoint_logs, images
from trireme_tools.deploy.model_data import url_of


def test_status_shows_what_is_deployed(cloud: FakeAccount) -> None:
    assert cloud.deploy("--autoscale", "1:4", "--target-invocations", "60", "--alarm", "errors").code == 0
    first = cloud.deployed_configuration()
    write_repository(cloud.repository, "2")
    assert cloud.deploy().code == 0
    cloud.client("cloudwatch").put_metric_data(
        Namespace="AWS/SageMaker",
        MetricData=[
            {
                "MetricName": "Invocations",
                "Value": 1234,
                "Timestamp": datetime.now(timezone.utc) - timedelta(minutes=9),
                "Dimensions": [
                    {"Name": "EndpointName", "Value": "ships"},
                    {"Name": "VariantName", "Value": "AllTraffic"},
                ],
            }
        ],
    )
    done = cloud.sm("status", "ships")
    assert done.code == 0, done.err
    rows = {line.split("  ")[0]: line for line in done.out.splitlines()}
    assert "InService, changed" in rows["state"]
    assert cloud.deployed_configuration() in rows["configuration"] and first in rows["before it"]
    assert IMAGE in rows["image"] and f"s3://{BUCKET}/trireme/ships/" in rows["model data"]
    assert "1 to 4 instances" in rows["autoscaling"] and "ships-errors" in rows["alarm"]
    assert "1,234" in rows["requests, last hour"]
    assert cloud.sm("status", "boats").code == 1


def test_logs_prints_the_last_lines(cloud: FakeAccount) -> None:
    assert cloud.sm("logs", "ships").code == 1
    cloud.put_log_lines("one", "two", "three")
    done = cloud.sm("logs", "ships", "-n", "2")
    assert done.code == 0 and done.out == "two\nthree\n"


def test_followed_logs_print_each_new_line_once(cloud: FakeAccount) -> None:
    cloud.put_log_lines("one")
    account = cloud.account()
    lines = endpoint_logs.follow_lines(
        account, "ships", time.time(), wait=lambda _: cloud.put_log_lines("two", instance="i-1")
    )
    assert [next(lines).split()[1] for _ in range(2)] == ["one", "two"]


def test_delete_lists_everything_asks_and_removes_it(cloud: FakeAccount) -> None:
    assert cloud.deploy("--autoscale", "1:4", "--target-invocations", "60", "--alarm", "errors").code == 0
    write_repository(cloud.repository, "2")
    assert cloud.deploy().code == 0
    before = cloud.list_resources()
    done = cloud.sm("delete", "ships", stdin="no\n")
    assert done.code == 1 and cloud.list_resources() == before
    for thing in (*before["models"], *before["configurations"], *before["archives"], *before["alarms"]):
        assert thing in done.out
    assert "--yes" in cloud.sm("delete", "ships").err and cloud.list_resources() == before
    done = cloud.sm("delete", "ships", stdin="ships\n")
    assert done.code == 0, done.err
    assert not any(cloud.list_resources().values())
    assert "'ships'" in cloud.sm("delete", "ships", "--yes").err


def test_delete_removes_nothing_of_another_deployment(cloud: FakeAccount) -> None:
    assert cloud.deploy(name="ships").code == 0
    assert cloud.deploy(name="ships-2").code == 0
    archive = url_of(cloud.proxy.bodies["CreateModel"]["PrimaryContainer"])
    assert cloud.sm("delete", "ships", "--yes").code == 0
    things = cloud.list_resources()
    assert things["endpoints"] == ["ships-2"] and {len(things[kind]) for kind in things} == {0, 1}
    assert archive.endswith(things["archives"][0])
    assert cloud.deploy(data=archive, name="boats").code == 0
    assert cloud.sm("delete", "boats", "--yes").code == 0
    assert cloud.list_resources()["archives"], "an archive that was named by its URL is not ours"


def test_the_prebuilt_image_is_deployed_by_the_same_command(cloud: FakeAccount) -> None:
    words = ("--image", images.uri("eu-west-1"), "--model-data", str(cloud.repository))
    done = cloud.sm("deploy", "ships", *words, "--instance-type", "ml.g4dn.xlarge")
    assert done.code == 0, done.err
    assert cloud.list_resources()["endpoints"] == ["ships"]
