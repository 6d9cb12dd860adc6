"""What an endpoint is, serves and does, on a screen."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from sm.deploy import alarms, autoscaling, names
from sm.deploy.account import Account
from sm.deploy.belongings import Belongings, model_of

#: What of the last hour is shown: the metric, whether as a mean (in microseconds) or a sum.
METRICS = (
    ("requests", "Invocations", False),
    ("failed in the box", "Invocation5XXErrors", False),
    ("refused by the box", "Invocation4XXErrors", False),
    ("mean time in the box", "ModelLatency", True),
)


def show(account: Account, name: str) -> int:
    """Print it; 0 if the endpoint is in service."""
    things = Belongings(account, name)
    endpoint = things.existing()
    rows = list(_rows(account, things, endpoint))
    width = max(len(title) for title, _ in rows)
    for title, text in rows:
        account.results.say(f"{title:<{width}}  {text}")
    return int(endpoint["EndpointStatus"] != "InService")


def _rows(account: Account, things: Belongings, endpoint: dict[str, Any]) -> Iterator[tuple[str, str]]:
    changed = endpoint["LastModifiedTime"].astimezone(timezone.utc)
    yield "endpoint", f"{things.name} in {account.region}"
    yield "state", f"{endpoint['EndpointStatus']}, changed {changed:%Y-%m-%d %H:%M} UTC"
    if reason := endpoint.get("FailureReason"):
        yield "reason", reason
    configuration = things.configuration(endpoint["EndpointConfigName"])
    if configuration:
        yield from _configuration(things, configuration)
    for variant in endpoint.get("ProductionVariants", ()):
        if "CurrentInstanceCount" in variant:
            wanted = variant.get("DesiredInstanceCount", variant["CurrentInstanceCount"])
            yield "instances", f"{variant['CurrentInstanceCount']} of {wanted}"
    if found := autoscaling.target(account, things.name):
        yield "autoscaling", f"{found['MinCapacity']} to {found['MaxCapacity']} instances"
    for alarm in alarms.own(account, things.name):
        yield "alarm", f"{alarm['AlarmName']}: {alarm['StateValue']}"
    yield from _metrics(account, things.name)


def _configuration(things: Belongings, configuration: dict[str, Any]) -> Iterator[tuple[str, str]]:
    variant = configuration["ProductionVariants"][0]
    yield "configuration", configuration["EndpointConfigName"]
    if before := things.previous(configuration):
        yield "before it", f"{before} (sm deploy {things.name} --rollback)"
    if size := variant.get("ServerlessConfig"):
        yield "serverless", f"{size['MemorySizeInMB']} MB, {size['MaxConcurrency']} requests at once"
    else:
        yield "instance type", variant["InstanceType"]
    if output := configuration.get("AsyncInferenceConfig"):
        yield "answers go to", output["OutputConfig"]["S3OutputPath"]
    if model := things.model(model_of(configuration)):
        container = model["PrimaryContainer"]
        yield "image", container["Image"]
        yield "model data", f"{container.get('ModelDataUrl', '-')} ({container.get('Mode', 'SingleModel')})"
        yield "role", model["ExecutionRoleArn"]


def _metrics(account: Account, name: str) -> Iterator[tuple[str, str]]:
    until = datetime.now(timezone.utc)
    for title, metric, is_mean in METRICS:
        found = account.call(
            "cloudwatch",
            "get_metric_statistics",
            "read the endpoint's metrics",
            Namespace="AWS/SageMaker",
            MetricName=metric,
            Dimensions=[
                {"Name": "EndpointName", "Value": name},
                {"Name": "VariantName", "Value": names.VARIANT},
            ],
            StartTime=until - timedelta(hours=1),
            EndTime=until,
            Period=300,
            Statistics=["Sum", "SampleCount"],
        )
        points = found.get("Datapoints", ())
        if points:
            total = sum(point["Sum"] for point in points)
            samples = sum(point["SampleCount"] for point in points)
            shown = f"{total / samples / 1000:,.1f} ms" if is_mean else f"{total:,.0f}"
            yield f"{title}, last hour", shown
