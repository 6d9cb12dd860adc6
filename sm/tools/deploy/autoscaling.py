"""How many instances an endpoint has: by requests, CPU, GPU, or where it is asynchronous by its backlog."""

from __future__ import annotations

from typing import Any

from sm.tools.deploy import aws, resource_names
from sm.tools.deploy.account import Account
from sm.tools.deploy.scaling import INSTANCE_METRICS, REQUESTS, UTILISATION, Scaling, Target

SERVICE = "application-autoscaling"
DIMENSION = "sagemaker:variant:DesiredInstanceCount"
#: Seconds: instances come quickly and go slowly, as starting one takes minutes.
OUT, IN = 60, 300


def what(name: str) -> dict[str, Any]:
    """Which thing is scaled, as each call wants to know."""
    return {
        "ServiceNamespace": "sagemaker",
        "ResourceId": f"endpoint/{name}/variant/{resource_names.VARIANT}",
        "ScalableDimension": DIMENSION,
    }


def target(account: Account, name: str) -> dict[str, Any] | None:
    """The limits as they are; None where the endpoint is not scaled."""
    wanted = what(name)
    wanted["ResourceIds"] = [wanted.pop("ResourceId")]
    found = account.call(SERVICE, "describe_scalable_targets", "look at the autoscaling", **wanted)
    return next(iter(found.get("ScalableTargets", ())), None)


def apply(account: Account, name: str, scaling: Scaling, asynchronous: bool) -> None:
    """Set limits and policy, whatever they were."""
    account.create(
        SERVICE,
        "register_scalable_target",
        "set the autoscaling's limits",
        **what(name),
        MinCapacity=scaling.least,
        MaxCapacity=scaling.most,
    )
    for each in scaling.targets:
        account.create(
            SERVICE,
            "put_scaling_policy",
            "set the autoscaling's policy",
            PolicyName=policy_name(name, each),
            PolicyType="TargetTrackingScaling",
            TargetTrackingScalingPolicyConfiguration=tracking(name, each, asynchronous),
            **what(name),
        )
    _remove_others(account, name, scaling)
    if asynchronous and scaling.least == 0:
        _wake(account, name)


def remove(account: Account, name: str) -> None:
    """Limits, policies and the alarms of these, which AWS keeps together."""
    account.remove(SERVICE, "deregister_scalable_target", "remove the autoscaling", **what(name))


def policy_name(name: str, target: Target) -> str:
    return f"{name}-{target.kind}"


def _remove_others(account: Account, name: str, scaling: Scaling) -> None:
    """Policies of ours for targets that are no longer wanted: an old one would still add instances."""
    wanted = {policy_name(name, each) for each in scaling.targets}
    known = {policy_name(name, Target(kind, 0)) for kind in (REQUESTS, *UTILISATION)}
    found = account.call(
        SERVICE,
        "describe_scaling_policies",
        "look at the autoscaling's policies",
        ServiceNamespace="sagemaker",
        ResourceId=what(name)["ResourceId"],
    )
    for row in found.get("ScalingPolicies", ()):
        if row["PolicyName"] in known - wanted:
            account.remove(
                SERVICE,
                "delete_scaling_policy",
                f"remove the autoscaling's policy {row['PolicyName']}",
                PolicyName=row["PolicyName"],
                **what(name),
            )


def tracking(name: str, target: Target, asynchronous: bool) -> dict[str, Any]:
    """The policy: so many requests for each instance, so much of its CPU or GPU, or so long a backlog."""
    if target.kind in UTILISATION:
        metric: dict[str, Any] = {"CustomizedMetricSpecification": _utilisation(name, target.kind)}
    elif asynchronous:
        metric = {"CustomizedMetricSpecification": _backlog(name, "ApproximateBacklogSizePerInstance")}
    else:
        kind = "SageMakerVariantInvocationsPerInstance"
        metric = {"PredefinedMetricSpecification": {"PredefinedMetricType": kind}}
    return {"TargetValue": target.value, **metric, "ScaleOutCooldown": OUT, "ScaleInCooldown": IN}


def _utilisation(name: str, kind: str) -> dict[str, Any]:
    return {
        "MetricName": UTILISATION[kind],
        "Namespace": INSTANCE_METRICS,
        "Dimensions": [
            {"Name": "EndpointName", "Value": name},
            {"Name": "VariantName", "Value": resource_names.VARIANT},
        ],
        "Statistic": "Average",
        "Unit": "Percent",
    }


def _backlog(name: str, metric: str) -> dict[str, Any]:
    return {
        "MetricName": metric,
        "Namespace": "AWS/SageMaker",
        "Dimensions": [{"Name": "EndpointName", "Value": name}],
        "Statistic": "Average",
    }


def _wake(account: Account, name: str) -> None:
    """A backlog per instance says nothing while there is no instance, so another alarm starts the first."""
    made = account.create(
        SERVICE,
        "put_scaling_policy",
        "set the policy that starts the first instance",
        PolicyName=f"{name}-wake",
        PolicyType="StepScaling",
        StepScalingPolicyConfiguration=waking(),
        **what(name),
    )
    account.create(
        "cloudwatch",
        "put_metric_alarm",
        "make the alarm that starts the first instance",
        **waking_alarm(name),
        AlarmActions=[made.get("PolicyARN", "ARN-OF-THE-POLICY")],
    )


def waking() -> dict[str, Any]:
    """The policy that starts the first instance."""
    return {
        "AdjustmentType": "ChangeInCapacity",
        "MetricAggregationType": "Average",
        "Cooldown": IN,
        "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
    }


def waking_alarm(name: str) -> dict[str, Any]:
    """The alarm for that policy."""
    return {
        "AlarmName": f"{name}-backlog",
        **_backlog(name, "HasBacklogWithoutCapacity"),
        "Threshold": 1.0,
        "Period": 60,
        "EvaluationPeriods": 2,
        "DatapointsToAlarm": 2,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "TreatMissingData": "missing",
        "Tags": aws.named({resource_names.TAG: name}),
    }
