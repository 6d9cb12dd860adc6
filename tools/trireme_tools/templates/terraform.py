"""The deployment for Terraform's AWS provider, in Terraform's JSON form (``*.tf.json``).

Its arguments are SageMaker's in snake case; exceptions are named here.
"""

from __future__ import annotations

import json
import re
from typing import Any

from trireme_tools.deploy import autoscaling, resources
from trireme_tools.templates.policies import trust_policy
from trireme_tools.templates.stack import Stack

#: The name of each resource within its type.
RESOURCE_NAME = "this"
#: Types with two resources, each under its own name.
NAMED_TYPES = {"aws_appautoscaling_policy", "aws_sagemaker_model"}
ALARM = "aws_cloudwatch_metric_alarm"
#: Lists of the API that are repeated blocks under another name.
BLOCKS = {"StepAdjustments": "step_adjustment"}


def template(stack: Stack) -> dict[str, Any]:
    kinds: dict[str, Any] = {} if stack.plan.role else role(stack)
    kinds |= {
        "aws_sagemaker_model": models(stack),
        "aws_sagemaker_endpoint_configuration": configuration(stack),
        "aws_sagemaker_endpoint": endpoint(stack),
    }
    if stack.scaling:
        kinds |= scaling(stack)
    resources = {
        kind: members if kind in NAMED_TYPES else {RESOURCE_NAME: members} for kind, members in kinds.items()
    }
    for box_alarm in stack.plan.alarms():
        ending = box_alarm["AlarmName"].removeprefix(f"{stack.plan.name}-")
        resources.setdefault(ALARM, {})[ending.replace("-", "_")] = convert_alarm(box_alarm)
    return {
        "terraform": {"required_providers": {"aws": {"source": "hashicorp/aws", "version": ">= 5.0"}}},
        "resource": resources,
        "output": {"endpoint": {"value": reference("aws_sagemaker_endpoint", "name")}},
    }


def reference(kind: str, attribute: str, name: str = RESOURCE_NAME) -> str:
    """Return a reference to an attribute of another resource."""
    return f"${{{kind}.{name}.{attribute}}}"


def snake(name: str) -> str:
    """Convert ``MemorySizeInMB`` to ``memory_size_in_mb``."""
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", parted).lower()


def literal(value: Any) -> Any:
    """Escape ``${`` and ``%{``, which would be references."""
    return re.sub(r"([$%])\{", r"\1\1{", value) if isinstance(value, str) else value


def convert(value: Any) -> Any:
    """Convert an argument of the API: names to snake case, except names of variables and tags."""
    if isinstance(value, dict):
        return {
            BLOCKS.get(key, snake(key)): _with_original_names(member)
            if key == "Environment"
            else convert(member)
            for key, member in value.items()
        }
    return [convert(member) for member in value] if isinstance(value, list) else literal(value)


def _with_original_names(members: dict[str, str]) -> dict[str, str]:
    return {key: literal(value) for key, value in members.items()}


def arguments(properties: dict[str, Any], name: str) -> dict[str, Any]:
    """Convert a call's arguments; ``name`` is the member with the resource's name, Terraform's ``name``."""
    tags = {row["Key"]: literal(row["Value"]) for row in properties["Tags"]}
    others = {key: value for key, value in properties.items() if key not in (name, "Tags")}
    return {"name": properties[name], **convert(others), "tags": tags}


def role(stack: Stack) -> dict[str, Any]:
    tags = {row["Key"]: literal(row["Value"]) for row in stack.plan.all_tags()}
    return {
        "aws_iam_role": {
            "name": stack.role_name,
            "assume_role_policy": literal(json.dumps(trust_policy("sagemaker.amazonaws.com"))),
            "tags": tags,
        },
        "aws_iam_role_policy": {
            "name": "execution",
            "role": reference("aws_iam_role", "name"),
            "policy": literal(json.dumps(stack.policy)),
        },
    }


def models(stack: Stack) -> dict[str, Any]:
    """Return the models of production and of the shadow, by Terraform's names."""
    found = {RESOURCE_NAME: stack.plan.model(), resources.SHADOW: stack.plan.shadow_model()}
    return {name: model(stack, properties) for name, properties in found.items() if properties}


def model(stack: Stack, of_api: dict[str, Any]) -> dict[str, Any]:
    properties = arguments(of_api, "ModelName")
    if stack.plan.role:
        return properties
    # A role without its policy cannot read the archive.
    needs = ["aws_iam_role_policy.this"]
    return {**properties, "execution_role_arn": reference("aws_iam_role", "arn"), "depends_on": needs}


def configuration(stack: Stack) -> dict[str, Any]:
    properties = arguments(stack.plan.configuration(), "EndpointConfigName")
    variants = {"production_variants": RESOURCE_NAME, "shadow_production_variants": resources.SHADOW}
    for kind, model_id in variants.items():
        model_name = {"model_name": reference("aws_sagemaker_model", "name", model_id)}
        if kind in properties:
            properties[kind] = [variant | model_name for variant in properties[kind]]
    # The endpoint always needs a configuration, so the new one is created first.
    return {**properties, "lifecycle": {"create_before_destroy": True}}


def endpoint(stack: Stack) -> dict[str, Any]:
    properties = arguments(stack.plan.endpoint(), "EndpointName")
    return {**properties, "endpoint_config_name": reference("aws_sagemaker_endpoint_configuration", "name")}


def scaling(stack: Stack) -> dict[str, Any]:
    autoscale = stack.scaling
    assert autoscale is not None
    name, asynchronous = stack.plan.name, bool(stack.plan.output)
    limits = autoscaling.limits(name, autoscale)
    resources = {
        "aws_appautoscaling_target": {**convert(limits), "depends_on": ["aws_sagemaker_endpoint.this"]},
        "aws_appautoscaling_policy": {
            target.kind: policy(
                autoscaling.policy_name(name, target),
                "TargetTrackingScaling",
                "target_tracking",
                convert(autoscaling.tracking_policy(name, target, asynchronous)),
            )
            for target in autoscale.targets
        },
    }
    if asynchronous and autoscale.least == 0:
        resources["aws_appautoscaling_policy"]["wake"] = policy(
            f"{name}-wake", "StepScaling", "step", convert(autoscaling.wake_policy())
        )
        resources[ALARM] = alarm(name)
    return resources


def policy(name: str, kind: str, block: str, configuration: dict[str, Any]) -> dict[str, Any]:
    target = {
        key: reference("aws_appautoscaling_target", key)
        for key in ("resource_id", "scalable_dimension", "service_namespace")
    }
    return {
        "name": name,
        "policy_type": kind,
        **target,
        f"{block}_scaling_policy_configuration": configuration,
    }


def alarm(name: str) -> dict[str, Any]:
    properties = autoscaling.wake_alarm(name)
    tags = {row["Key"]: row["Value"] for row in properties.pop("Tags")}
    dimensions = {row["Name"]: row["Value"] for row in properties.pop("Dimensions")}
    return {
        **convert(properties),
        "dimensions": dimensions,
        "alarm_actions": [reference("aws_appautoscaling_policy", "arn", "wake")],
        "tags": tags,
    }


def convert_alarm(properties: dict[str, Any]) -> dict[str, Any]:
    """Convert an alarm on the box's own metrics; Terraform has a metric's dimensions as a map."""
    remaining = dict(properties)
    converted: dict[str, Any] = {"tags": {row["Key"]: row["Value"] for row in remaining.pop("Tags")}}
    if "Dimensions" in remaining:
        converted["dimensions"] = _dimensions(remaining.pop("Dimensions"))
    if "Metrics" in remaining:
        converted["metric_query"] = [_query(query) for query in remaining.pop("Metrics")]
    return {**convert(remaining), **converted}


def _query(query: dict[str, Any]) -> dict[str, Any]:
    remaining = dict(query)
    statistic = remaining.pop("MetricStat", None)
    if statistic is None:
        return dict(convert(remaining))
    metric = dict(statistic["Metric"])
    block = {
        "dimensions": _dimensions(metric.pop("Dimensions")),
        **convert(metric),
        "period": statistic["Period"],
        "stat": statistic["Stat"],
    }
    return {**convert(remaining), "metric": block}


def _dimensions(rows: list[dict[str, str]]) -> dict[str, str]:
    return {row["Name"]: literal(row["Value"]) for row in rows}
