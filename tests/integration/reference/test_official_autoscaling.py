"""Autoscaling by utilisation, and the metrics of multi-model endpoints, with the real boto3 and moto's AWS."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.support.deploy_account import FakeAccount, cloud, proxy

__all__ = ["cloud", "proxy"]


def metric_specification(name: str, endpoint: str) -> dict[str, Any]:
    """The metric specification that the notebooks send with PutScalingPolicy."""
    return {
        "MetricName": name,
        "Namespace": "/aws/sagemaker/Endpoints",
        "Dimensions": [
            {"Name": "EndpointName", "Value": endpoint},
            {"Name": "VariantName", "Value": "AllTraffic"},
        ],
        "Statistic": "Average",
        "Unit": "Percent",
    }


def scaling_policies(cloud: FakeAccount) -> dict[str, Any]:
    """The target tracking configurations in the account, by the policy's name."""
    response = cloud.client("application-autoscaling").describe_scaling_policies(ServiceNamespace="sagemaker")
    return {
        policy["PolicyName"]: policy["TargetTrackingScalingPolicyConfiguration"]
        for policy in response["ScalingPolicies"]
    }


@pytest.mark.exhaustive
def test_an_endpoint_can_scale_by_cpu_and_gpu_utilisation_and_invocations(cloud: FakeAccount) -> None:
    targets = ("--target-invocations", "600", "--target-cpu", "70", "--target-gpu", "90")
    assert cloud.deploy("--autoscale", "1:4", *targets).code == 0
    policies = scaling_policies(cloud)
    assert set(policies) == {"ships-target", "ships-cpu", "ships-gpu"}
    for kind, metric, value in (("cpu", "CPUUtilization", 70), ("gpu", "GPUUtilization", 90)):
        assert policies[f"ships-{kind}"]["TargetValue"] == value
        assert policies[f"ships-{kind}"]["CustomizedMetricSpecification"] == metric_specification(
            metric, "ships"
        )
    predefined = policies["ships-target"]["PredefinedMetricSpecification"]["PredefinedMetricType"]
    assert predefined == "SageMakerVariantInvocationsPerInstance"


def put_metric(cloud: FakeAccount, namespace: str, name: str, *values: float) -> None:
    """Send metric data to CloudWatch as SageMaker would have some minutes ago."""
    dimensions = [
        {"Name": "EndpointName", "Value": "ships"},
        {"Name": "VariantName", "Value": "AllTraffic"},
    ]
    timestamp = datetime.now(timezone.utc) - timedelta(minutes=9)
    data = [
        {"MetricName": name, "Value": value, "Timestamp": timestamp, "Dimensions": dimensions}
        for value in values
    ]
    cloud.client("cloudwatch").put_metric_data(Namespace=namespace, MetricData=data)


def test_status_shows_the_metrics_of_a_multi_model_endpoint_that_exist(cloud: FakeAccount) -> None:
    assert cloud.deploy().code == 0
    assert "LoadedModelCount" not in cloud.sm("status", "ships").out
    request_metrics, instance_metrics = "AWS/SageMaker", "/aws/sagemaker/Endpoints"
    put_metric(cloud, instance_metrics, "LoadedModelCount", 3, 5)
    put_metric(cloud, request_metrics, "ModelCacheHit", 1, 1, 1, 0)
    put_metric(cloud, request_metrics, "ModelLoadingWaitTime", 2_000_000, 1_000_000)
    put_metric(cloud, instance_metrics, "CPUUtilization", 120, 140)
    put_metric(cloud, instance_metrics, "GPUUtilization", 35)
    lines = dict(line.split("  ", 1) for line in cloud.sm("status", "ships").out.splitlines())
    metrics = {title.removesuffix(", last hour"): text.strip() for title, text in lines.items()}
    assert metrics["LoadedModelCount"] == "4.0 on each instance"
    assert metrics["ModelCacheHit"] == "75.0% of 4"
    assert metrics["ModelLoadingWaitTime"] == "1,500.0 ms"
    assert metrics["CPUUtilization"] == "130.0 %"
    assert metrics["GPUUtilization"] == "35.0 %"
    assert "MemoryUtilization" not in metrics
