"""The CloudFormation template for Terraform's AWS provider, in Terraform's JSON form (``*.tf.json``).

The provider's arguments are CloudFormation's properties in snake case; exceptions are named here.
"""

from __future__ import annotations

import json
import re
from typing import Any

from trireme_tools.templates import cloudformation
from trireme_tools.templates.stack import Stack

#: Terraform's type for each of CloudFormation's, and the property with the resource's own name.
TYPES = {
    "AWS::IAM::Role": ("aws_iam_role", ""),
    "AWS::SageMaker::Model": ("aws_sagemaker_model", "ModelName"),
    "AWS::SageMaker::EndpointConfig": ("aws_sagemaker_endpoint_configuration", "EndpointConfigName"),
    "AWS::SageMaker::Endpoint": ("aws_sagemaker_endpoint", "EndpointName"),
    "AWS::ApplicationAutoScaling::ScalableTarget": ("aws_appautoscaling_target", ""),
    "AWS::ApplicationAutoScaling::ScalingPolicy": ("aws_appautoscaling_policy", "PolicyName"),
    "AWS::CloudWatch::Alarm": ("aws_cloudwatch_metric_alarm", ""),
}
#: Names within the type, where it has several resources; a single one is called "this".
NAMES = {
    "ShadowModel": "shadow",
    "Scaling": "target",
    "ScalingCpu": "cpu",
    "ScalingGpu": "gpu",
    "Wake": "wake",
    "WatchErrorRate": "error_rate",
    "WatchP99": "p99",
}
SINGLE = "this"
#: inference_ami_version came in June 2024 (hashicorp/terraform-provider-aws, pull request 38085).
PROVIDER = ">= 5.60"
#: Lists of CloudFormation that are repeated blocks under another name.
BLOCKS = {"StepAdjustments": "step_adjustment", "Metrics": "metric_query"}


def template(stack: Stack) -> dict[str, Any]:
    described = cloudformation.template(stack)["Resources"]
    resources: dict[str, dict[str, Any]] = {}
    if role := described.pop("Role", None):
        resources |= _role(stack, role["Properties"])
    for logical_id, resource in described.items():
        kind, own_name = TYPES[resource["Type"]]
        arguments = _arguments(resource["Properties"], own_name, kind == "aws_cloudwatch_metric_alarm")
        if "DependsOn" in resource:
            arguments["depends_on"] = [f"aws_sagemaker_endpoint.{SINGLE}"]
        resources.setdefault(kind, {})[NAMES.get(logical_id, SINGLE)] = arguments
    if role:  # without its policy it cannot read the archive
        for model in resources["aws_sagemaker_model"].values():
            model["depends_on"] = [f"aws_iam_role_policy.{SINGLE}"]
    # The endpoint always needs a configuration, so the new one is created first.
    (configuration,) = resources["aws_sagemaker_endpoint_configuration"].values()
    if "kms_key_id" in configuration:  # the provider's name of this one
        configuration["kms_key_arn"] = configuration.pop("kms_key_id")
    configuration["lifecycle"] = {"create_before_destroy": True}
    return {
        "terraform": {"required_providers": {"aws": {"source": "hashicorp/aws", "version": PROVIDER}}},
        "resource": resources,
        "output": {"endpoint": {"value": f"${{aws_sagemaker_endpoint.{SINGLE}.name}}"}},
    }


def snake(name: str) -> str:
    """Convert ``MemorySizeInMB`` to ``memory_size_in_mb``."""
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", parted).lower()


def literal(value: Any) -> Any:
    """Escape ``${`` and ``%{``, which would be references."""
    return re.sub(r"([$%])\{", r"\1\1{", value) if isinstance(value, str) else value


def _role(stack: Stack, properties: dict[str, Any]) -> dict[str, Any]:
    """Return the role and, as a resource of its own, its policy."""
    role = {
        "name": stack.role_name,
        "assume_role_policy": literal(json.dumps(properties["AssumeRolePolicyDocument"])),
        "tags": _map(properties["Tags"], "Key"),
    }
    policy = {
        "name": "execution",
        "role": f"${{aws_iam_role.{SINGLE}.name}}",
        "policy": literal(json.dumps(stack.policy)),
    }
    return {"aws_iam_role": {SINGLE: role}, "aws_iam_role_policy": {SINGLE: policy}}


def _arguments(properties: dict[str, Any], own_name: str, of_alarm: bool) -> dict[str, Any]:
    """Convert properties, of which ``own_name`` is Terraform's ``name``."""
    arguments: dict[str, Any] = {}
    for key, value in properties.items():
        if key == "Tags":
            arguments["tags"] = _map(value, "Key")
        elif key == "ScalingTargetId":
            for name in ("resource_id", "scalable_dimension", "service_namespace"):
                arguments[name] = f"${{aws_appautoscaling_target.{SINGLE}.{name}}}"
        elif key == "Environment":  # names of the user
            arguments["environment"] = {name: literal(text) for name, text in value.items()}
        elif key == "Dimensions" and of_alarm:
            arguments["dimensions"] = _map(value, "Name")
        elif key == "MetricStat":
            others = {name: member for name, member in value.items() if name != "Metric"}
            arguments["metric"] = _arguments({**value["Metric"], **others}, "", of_alarm)
        else:
            name = "name" if key == own_name else BLOCKS.get(key, snake(key))
            arguments[name] = _value(value, of_alarm)
    return arguments


def _value(value: Any, of_alarm: bool) -> Any:
    if isinstance(value, list):
        return [_value(member, of_alarm) for member in value]
    if not isinstance(value, dict):
        return literal(value)
    if "Ref" in value:
        return f"${{aws_appautoscaling_policy.{NAMES[value['Ref']]}.arn}}"
    if "Fn::GetAtt" in value:
        logical_id, attribute = value["Fn::GetAtt"]
        kinds = {"Role": "aws_iam_role", "Configuration": "aws_sagemaker_endpoint_configuration"}
        address = f"{kinds.get(logical_id, 'aws_sagemaker_model')}.{NAMES.get(logical_id, SINGLE)}"
        return f"${{{address}.{'arn' if attribute == 'Arn' else 'name'}}}"
    return _arguments(value, "", of_alarm)


def _map(rows: list[dict[str, str]], key: str) -> dict[str, str]:
    """Return rows of names and values as Terraform's map."""
    return {row[key]: literal(row["Value"]) for row in rows}
