"""The deployment for Terraform's AWS provider, in Terraform's JSON form (``*.tf.json``).

Its arguments are SageMaker's own in snake case; the few that are not so are named here.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sm.tools.deploy import autoscaling
from sm.tools.templates.policies import trust
from sm.tools.templates.stack import Stack

#: The name of each resource within its kind.
THIS = "this"
#: Kinds of which there may be two, each with its name.
REPEATED = {"aws_appautoscaling_policy"}
#: Lists of the API that are repeated blocks with a name of their own.
BLOCKS = {"StepAdjustments": "step_adjustment"}


def template(stack: Stack) -> dict[str, Any]:
    kinds: dict[str, Any] = {} if stack.plan.role else role(stack)
    kinds |= {
        "aws_sagemaker_model": model(stack),
        "aws_sagemaker_endpoint_configuration": configuration(stack),
        "aws_sagemaker_endpoint": endpoint(stack),
    }
    if stack.scaling:
        kinds |= scaling(stack)
    return {
        "terraform": {"required_providers": {"aws": {"source": "hashicorp/aws", "version": ">= 5.0"}}},
        "resource": {kind: made if kind in REPEATED else {THIS: made} for kind, made in kinds.items()},
        "output": {"endpoint": {"value": of("aws_sagemaker_endpoint", "name")}},
    }


def of(kind: str, attribute: str, name: str = THIS) -> str:
    """A reference to what another resource has."""
    return f"${{{kind}.{name}.{attribute}}}"


def snake(name: str) -> str:
    """``MemorySizeInMB`` as ``memory_size_in_mb``."""
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", parted).lower()


def literal(value: Any) -> Any:
    """``${`` and ``%{`` in a text mean themselves, not a reference."""
    return re.sub(r"([$%])\{", r"\1\1{", value) if isinstance(value, str) else value


def converted(value: Any) -> Any:
    """The API's argument, its names in snake case; a variable's name and a tag's stay as they are."""
    if isinstance(value, dict):
        return {
            BLOCKS.get(key, snake(key)): _kept(member) if key == "Environment" else converted(member)
            for key, member in value.items()
        }
    return [converted(member) for member in value] if isinstance(value, list) else literal(value)


def _kept(members: dict[str, str]) -> dict[str, str]:
    return {key: literal(value) for key, value in members.items()}


def arguments(given: dict[str, Any], name: str) -> dict[str, Any]:
    """A whole call's: ``name`` is the member that names the thing, which Terraform calls ``name``."""
    tags = {row["Key"]: literal(row["Value"]) for row in given["Tags"]}
    rest = {key: value for key, value in given.items() if key not in (name, "Tags")}
    return {"name": given[name], **converted(rest), "tags": tags}


def role(stack: Stack) -> dict[str, Any]:
    tags = {row["Key"]: literal(row["Value"]) for row in stack.plan.all_tags()}
    return {
        "aws_iam_role": {
            "name": stack.role_name,
            "assume_role_policy": literal(json.dumps(trust("sagemaker.amazonaws.com"))),
            "tags": tags,
        },
        "aws_iam_role_policy": {
            "name": "execution",
            "role": of("aws_iam_role", "name"),
            "policy": literal(json.dumps(stack.policy)),
        },
    }


def model(stack: Stack) -> dict[str, Any]:
    made = arguments(stack.plan.model(), "ModelName")
    if stack.plan.role:
        return made
    # A role without its policy cannot read the archive.
    needs = ["aws_iam_role_policy.this"]
    return {**made, "execution_role_arn": of("aws_iam_role", "arn"), "depends_on": needs}


def configuration(stack: Stack) -> dict[str, Any]:
    made = arguments(stack.plan.configuration(), "EndpointConfigName")
    own = {"model_name": of("aws_sagemaker_model", "name")}
    made["production_variants"] = [variant | own for variant in made["production_variants"]]
    # The endpoint needs one at all times: the new one comes first.
    return {**made, "lifecycle": {"create_before_destroy": True}}


def endpoint(stack: Stack) -> dict[str, Any]:
    made = arguments(stack.plan.endpoint(), "EndpointName")
    return {**made, "endpoint_config_name": of("aws_sagemaker_endpoint_configuration", "name")}


def scaling(stack: Stack) -> dict[str, Any]:
    wanted = stack.scaling
    assert wanted is not None
    name, asynchronous = stack.plan.name, bool(stack.plan.output)
    limits = {**autoscaling.what(name), "MinCapacity": wanted.least, "MaxCapacity": wanted.most}
    made = {
        "aws_appautoscaling_target": {**converted(limits), "depends_on": ["aws_sagemaker_endpoint.this"]},
        "aws_appautoscaling_policy": {
            each.kind: policy(
                autoscaling.policy_name(name, each),
                "TargetTrackingScaling",
                "target_tracking",
                converted(autoscaling.tracking(name, each, asynchronous)),
            )
            for each in wanted.targets
        },
    }
    if asynchronous and wanted.least == 0:
        made["aws_appautoscaling_policy"]["wake"] = policy(
            f"{name}-wake", "StepScaling", "step", converted(autoscaling.waking())
        )
        made["aws_cloudwatch_metric_alarm"] = alarm(name)
    return made


def policy(name: str, kind: str, block: str, configuration: dict[str, Any]) -> dict[str, Any]:
    target = {
        key: of("aws_appautoscaling_target", key)
        for key in ("resource_id", "scalable_dimension", "service_namespace")
    }
    return {
        "name": name,
        "policy_type": kind,
        **target,
        f"{block}_scaling_policy_configuration": configuration,
    }


def alarm(name: str) -> dict[str, Any]:
    given = autoscaling.waking_alarm(name)
    tags = {row["Key"]: row["Value"] for row in given.pop("Tags")}
    dimensions = {row["Name"]: row["Value"] for row in given.pop("Dimensions")}
    return {
        **converted(given),
        "dimensions": dimensions,
        "alarm_actions": [of("aws_appautoscaling_policy", "arn", "wake")],
        "tags": tags,
    }
