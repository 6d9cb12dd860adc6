"""Show an endpoint's state, model and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from sm.settings import EMF_NAMESPACE
from trireme_tools.deploy import alarms, autoscaling, components, model_data, resources
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.alarms import ENDPOINT_NAME
from trireme_tools.deploy.resources import Resources, model_of

#: The namespaces of the metrics of an endpoint's requests, and of its instances.
REQUEST_METRICS, INSTANCE_METRICS = "AWS/SageMaker", "/aws/sagemaker/Endpoints"


@dataclass(frozen=True)
class Metric:
    """A metric; ``shown`` is a key of :data:`SHOWN`."""

    title: str
    name: str
    namespace: str
    shown: str


#: How the sum and the count of samples are shown. CloudWatch has microseconds; a sample of a share is 1 or 0.
SHOWN: dict[str, Callable[[float, float], str]] = {
    "total": lambda total, _: f"{total:,.0f}",
    "mean us": lambda total, samples: f"{total / samples / 1000:,.1f} ms",
    "mean ms": lambda total, samples: f"{total / samples:,.1f} ms",
    "percent": lambda total, samples: f"{total / samples:.1f} %",
    "instances": lambda total, samples: f"{total / samples:,.1f} on each instance",
    "share": lambda total, samples: f"{total / samples:.1%} of {samples:,.0f}",
}
#: Metrics of the last hour that are shown: only multi-model endpoints have those of loading. Names,
#: namespaces and units: docs.aws.amazon.com/sagemaker/latest/dg/multi-model-endpoint-cloudwatch-metrics.html.
METRICS = (
    Metric("requests", "Invocations", REQUEST_METRICS, "total"),
    Metric("failed in the box", "Invocation5XXErrors", REQUEST_METRICS, "total"),
    Metric("refused by the box", "Invocation4XXErrors", REQUEST_METRICS, "total"),
    Metric("mean time in the box", "ModelLatency", REQUEST_METRICS, "mean us"),
    Metric("LoadedModelCount", "LoadedModelCount", INSTANCE_METRICS, "instances"),
    Metric("ModelCacheHit", "ModelCacheHit", REQUEST_METRICS, "share"),
    Metric("ModelLoadingWaitTime", "ModelLoadingWaitTime", REQUEST_METRICS, "mean us"),
    Metric("CPUUtilization", "CPUUtilization", INSTANCE_METRICS, "percent"),
    Metric("MemoryUtilization", "MemoryUtilization", INSTANCE_METRICS, "percent"),
    Metric("GPUUtilization", "GPUUtilization", INSTANCE_METRICS, "percent"),
    Metric("GPUMemoryUtilization", "GPUMemoryUtilization", INSTANCE_METRICS, "percent"),
    Metric("DiskUtilization", "DiskUtilization", INSTANCE_METRICS, "percent"),
)


#: Metrics that the box itself writes (trireme_extensions.observe), in the namespace that its settings name.
BOX_METRICS = (("Requests", "total"), ("Errors", "total"), ("Latency", "mean ms"))


def show(account: Account, name: str) -> int:
    """Print the status; return 0 if the endpoint is in service."""
    resources = Resources(account, name)
    endpoint = resources.existing()
    rows = list(_rows(account, resources, endpoint))
    width = max(len(title) for title, _ in rows)
    for title, text in rows:
        account.results.say(f"{title:<{width}}  {text}")
    return int(endpoint["EndpointStatus"] != "InService")


def _rows(account: Account, resources: Resources, endpoint: dict[str, Any]) -> Iterator[tuple[str, str]]:
    changed = endpoint["LastModifiedTime"].astimezone(timezone.utc)
    yield "endpoint", f"{resources.name} in {account.region}"
    yield "state", f"{endpoint['EndpointStatus']}, changed {changed:%Y-%m-%d %H:%M} UTC"
    if reason := endpoint.get("FailureReason"):
        yield "reason", reason
    configuration = resources.configuration(endpoint["EndpointConfigName"])
    if configuration:
        yield from _configuration(resources, configuration)
    for variant in endpoint.get("ProductionVariants", ()):
        if "CurrentInstanceCount" in variant:
            desired = variant.get("DesiredInstanceCount", variant["CurrentInstanceCount"])
            yield "instances", f"{variant['CurrentInstanceCount']} of {desired}"
    if scalable := autoscaling.current_limits(account, resources.name):
        yield "autoscaling", f"{scalable['MinCapacity']} to {scalable['MaxCapacity']} instances"
    for row in components.of_endpoint(account, resources.name):
        yield "component", f"{row['InferenceComponentName']}: {row['InferenceComponentStatus']}"
    for alarm in alarms.find_own(account, resources.name):
        yield "alarm", f"{alarm['AlarmName']}: {alarm['StateValue']}"
    yield from _metrics(account, resources.name, bool(configuration and _shadows(configuration)))
    if configuration and (model := model_of(configuration)):
        yield from _box_metrics(account, resources.model(model) or {})


def _configuration(resources: Resources, configuration: dict[str, Any]) -> Iterator[tuple[str, str]]:
    variant = configuration["ProductionVariants"][0]
    yield "configuration", configuration["EndpointConfigName"]
    if before := resources.previous(configuration):
        yield "before it", f"{before} (sm deploy {resources.name} --rollback)"
    if size := variant.get("ServerlessConfig"):
        yield "serverless", f"{size['MemorySizeInMB']} MB, {size['MaxConcurrency']} requests at once"
    else:
        yield "instance type", variant["InstanceType"]
    for shadow in _shadows(configuration):
        share = shadow["InitialVariantWeight"] / variant.get("InitialVariantWeight", 1.0)
        container = (resources.model(shadow["ModelName"]) or {}).get("PrimaryContainer", {})
        yield "shadow", f"gets a copy of {share:.0%} of the requests"
        yield "shadow's image", container.get("Image", "-")
        yield "shadow's model data", model_data.url_of(container) or "-"
    if output := configuration.get("AsyncInferenceConfig"):
        yield "answers go to", output["OutputConfig"]["S3OutputPath"]
    if (name := model_of(configuration)) and (model := resources.model(name)):
        container = model["PrimaryContainer"]
        yield "image", container["Image"]
        yield "model data", f"{model_data.url_of(container) or '-'} ({container.get('Mode', 'SingleModel')})"
        yield "role", model["ExecutionRoleArn"]


def _shadows(configuration: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the shadow variants: one or none."""
    return list(configuration.get("ShadowProductionVariants") or ())


def _metrics(account: Account, name: str, has_shadow: bool) -> Iterator[tuple[str, str]]:
    """Yield the metrics; with a shadow, production's and its own side by side."""

    def read(metric: Metric, variant: str) -> str:
        dimensions = {"EndpointName": name, "VariantName": variant}
        last_hour = _last_hour(account, metric.namespace, metric.name, dimensions)
        return SHOWN[metric.shown](*last_hour) if last_hour else ""

    if has_shadow:
        yield "", f"{'production':<16}shadow"
    for metric in METRICS:
        production = read(metric, resources.VARIANT)
        shadow = read(metric, resources.SHADOW) if has_shadow else ""
        if production or shadow:
            yield f"{metric.title}, last hour", f"{production or '-':<16}{shadow}" if shadow else production


def _box_metrics(account: Account, model: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the box's own metrics, if it writes them under the endpoint's name."""
    environment = model.get("PrimaryContainer", {}).get("Environment", {})
    if not environment.get(ENDPOINT_NAME):
        return
    for name, shown in BOX_METRICS:
        if last_hour := _last_hour(account, EMF_NAMESPACE, name, {"Endpoint": environment[ENDPOINT_NAME]}):
            yield f"{EMF_NAMESPACE}/{name}, last hour", SHOWN[shown](*last_hour)


def _last_hour(
    account: Account, namespace: str, name: str, dimensions: Mapping[str, str]
) -> tuple[float, float] | None:
    """Return the sum and the count of a metric's samples; None if there is none."""
    until = datetime.now(timezone.utc)
    statistics = account.call(
        "cloudwatch",
        "get_metric_statistics",
        "read the endpoint's metrics",
        Namespace=namespace,
        MetricName=name,
        Dimensions=[{"Name": key, "Value": value} for key, value in dimensions.items()],
        StartTime=until - timedelta(hours=1),
        EndTime=until,
        Period=300,
        Statistics=["Sum", "SampleCount"],
    )
    points = statistics.get("Datapoints", ())
    if not points:
        return None
    return sum(point["Sum"] for point in points), sum(point["SampleCount"] for point in points)
