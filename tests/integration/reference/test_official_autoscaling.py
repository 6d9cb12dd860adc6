"""Autoscaling by utilisation, and the metrics of multi-model endpoints: the real boto3 against moto's AWS."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from tests.support.deploy_account import IMAGE, Cloud, cloud, proxy

__all__ = ["cloud", "proxy"]


def reference_metric(name: str, endpoint: str) -> dict[str, Any]:
    """The specification as the notebooks give it to PutScalingPolicy."""
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


def policies(cloud: Cloud) -> dict[str, Any]:
    """The configurations of the target tracking policies in the account, by name."""
    found = cloud.client("application-autoscaling").describe_scaling_policies(ServiceNamespace="sagemaker")
    return {
        row["PolicyName"]: row["TargetTrackingScalingPolicyConfiguration"] for row in found["ScalingPolicies"]
    }


def test_cpu_and_gpu_utilisation_scale_beside_invocations(cloud: Cloud) -> None:
    targets = ("--target-invocations", "600", "--target-cpu", "70", "--target-gpu", "90")
    assert cloud.deploy("--autoscale", "1:4", *targets).code == 0
    found = policies(cloud)
    assert set(found) == {"ships-target", "ships-cpu", "ships-gpu"}
    for kind, metric, value in (("cpu", "CPUUtilization", 70), ("gpu", "GPUUtilization", 90)):
        assert found[f"ships-{kind}"]["TargetValue"] == value
        assert found[f"ships-{kind}"]["CustomizedMetricSpecification"] == reference_metric(metric, "ships")
    predefined = found["ships-target"]["PredefinedMetricSpecification"]["PredefinedMetricType"]
    assert predefined == "SageMakerVariantInvocationsPerInstance"


def test_a_target_that_is_no_longer_asked_for_scales_no_more(cloud: Cloud) -> None:
    assert cloud.deploy("--autoscale", "1:4", "--target-gpu", "90", "--target-cpu", "300").code == 0
    assert set(policies(cloud)) == {"ships-cpu", "ships-gpu"}
    assert cloud.deploy("--autoscale", "1:4", "--target-gpu", "80").code == 0
    assert {name: row["TargetValue"] for name, row in policies(cloud).items()} == {"ships-gpu": 80}


def test_what_cannot_be_scaled_by_is_a_sentence(cloud: Cloud) -> None:
    for words, sentence in (
        (("--target-cpu", "70"), "go with --autoscale MIN:MAX"),
        (("--autoscale", "1:2"), "--target-gpu PERCENT"),
        (("--autoscale", "0:2", "--target-cpu", "70", "--async", "s3://out"), "wants --target-invocations N"),
    ):
        done = cloud.deploy(*words)
        assert done.code == 1 and sentence in done.err, done.err
    assert cloud.proxy.changes == []


def test_a_template_has_the_same_policies(cloud: Cloud) -> None:
    words = ("--image", IMAGE, "--autoscale", "1:4", "--target-gpu", "90", "--role", "arn:aws:iam::1:role/x")
    resources = json.loads(cloud.sm("template", "ships", *words).out)["Resources"]
    tracking = resources["ScalingGpu"]["Properties"]["TargetTrackingScalingPolicyConfiguration"]
    assert tracking["CustomizedMetricSpecification"] == reference_metric("GPUUtilization", "ships")
    assert tracking["TargetValue"] == 90
    made = json.loads(cloud.sm("template", "ships", "--format", "terraform", *words).out)["resource"]
    metric = made["aws_appautoscaling_policy"]["gpu"]["target_tracking_scaling_policy_configuration"][
        "customized_metric_specification"
    ]
    assert (metric["metric_name"], metric["namespace"]) == ("GPUUtilization", "/aws/sagemaker/Endpoints")


def put_metric(cloud: Cloud, namespace: str, name: str, *values: float) -> None:
    """What SageMaker would have sent to CloudWatch, some minutes ago."""
    dimensions = [
        {"Name": "EndpointName", "Value": "ships"},
        {"Name": "VariantName", "Value": "AllTraffic"},
    ]
    moment = datetime.now(timezone.utc) - timedelta(minutes=9)
    data = [
        {"MetricName": name, "Value": value, "Timestamp": moment, "Dimensions": dimensions}
        for value in values
    ]
    cloud.client("cloudwatch").put_metric_data(Namespace=namespace, MetricData=data)


def test_status_shows_a_multi_model_endpoints_metrics_where_they_exist(cloud: Cloud) -> None:
    assert cloud.deploy().code == 0
    assert "LoadedModelCount" not in cloud.sm("status", "ships").out
    requests, instances = "AWS/SageMaker", "/aws/sagemaker/Endpoints"
    put_metric(cloud, instances, "LoadedModelCount", 3, 5)
    put_metric(cloud, requests, "ModelCacheHit", 1, 1, 1, 0)
    put_metric(cloud, requests, "ModelLoadingWaitTime", 2_000_000, 1_000_000)
    put_metric(cloud, instances, "CPUUtilization", 120, 140)
    put_metric(cloud, instances, "GPUUtilization", 35)
    shown = dict(line.split("  ", 1) for line in cloud.sm("status", "ships").out.splitlines())
    found = {title.removesuffix(", last hour"): text.strip() for title, text in shown.items()}
    assert found["LoadedModelCount"] == "4.0 on each instance"
    assert found["ModelCacheHit"] == "75.0% of 4"
    assert found["ModelLoadingWaitTime"] == "1,500.0 ms"
    assert found["CPUUtilization"] == "130.0 %"
    assert found["GPUUtilization"] == "35.0 %"
    assert "MemoryUtilization" not in found
