"""The deployment as a stack of CloudFormation: its properties are SageMaker's own arguments."""

from __future__ import annotations

from typing import Any

from trireme_tools.deploy import autoscaling
from trireme_tools.deploy.autoscaling import REQUESTS, WAKE
from trireme_tools.templates.policies import trust_policy
from trireme_tools.templates.stack import Stack

Resource = dict[str, Any]


def template(stack: Stack) -> dict[str, Any]:
    """Return JSON, which is also YAML."""
    resources: dict[str, Resource] = {} if stack.plan.role else {"Role": role(stack)}
    resources |= {"Model": model(stack), "Configuration": configuration(stack), "Endpoint": endpoint(stack)}
    if shadow := stack.plan.shadow_model():
        resources["ShadowModel"] = with_role(stack, shadow)
    if stack.scaling:
        resources |= scaling(stack)
    for alarm in stack.plan.alarms():
        # error-rate becomes WatchErrorRate: the id of a resource is alphanumeric.
        ending = alarm["AlarmName"].removeprefix(f"{stack.plan.name}-")
        resources[f"Watch{ending.title().replace('-', '')}"] = resource("CloudWatch::Alarm", alarm)
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Endpoint {stack.plan.name}: models behind one port",
        "Resources": resources,
        "Outputs": {"Endpoint": {"Value": attribute("Endpoint", "EndpointName")}},
    }


def resource(kind: str, properties: dict[str, Any]) -> Resource:
    return {"Type": f"AWS::{kind}", "Properties": properties}


def attribute(name: str, of: str) -> dict[str, list[str]]:
    return {"Fn::GetAtt": [name, of]}


def role(stack: Stack) -> Resource:
    policy = {"PolicyName": "execution", "PolicyDocument": stack.policy}
    return resource(
        "IAM::Role",
        {
            "AssumeRolePolicyDocument": trust_policy("sagemaker.amazonaws.com"),
            "Policies": [policy],
            "Tags": stack.plan.all_tags(),
        },
    )


def model(stack: Stack) -> Resource:
    return with_role(stack, stack.plan.model())


def with_role(stack: Stack, properties: dict[str, Any]) -> Resource:
    """Return a model that has the plan's role, or the role of this template."""
    arn = stack.plan.role or attribute("Role", "Arn")
    return resource("SageMaker::Model", {**properties, "ExecutionRoleArn": arn})


def configuration(stack: Stack) -> Resource:
    properties = stack.plan.configuration()
    for kind, model_id in (("ProductionVariants", "Model"), ("ShadowProductionVariants", "ShadowModel")):
        model_name = {"ModelName": attribute(model_id, "ModelName")}
        if kind in properties:
            properties[kind] = [variant | model_name for variant in properties[kind]]
    return resource("SageMaker::EndpointConfig", properties)


def endpoint(stack: Stack) -> Resource:
    name = attribute("Configuration", "EndpointConfigName")
    return resource("SageMaker::Endpoint", {**stack.plan.endpoint(), "EndpointConfigName": name})


def scaling(stack: Stack) -> dict[str, Resource]:
    autoscale = stack.scaling
    assert autoscale is not None
    name = stack.plan.name
    limits = autoscaling.limits(name, autoscale)
    resources = {
        "Limits": {**resource("ApplicationAutoScaling::ScalableTarget", limits), "DependsOn": "Endpoint"},
    }
    for kind, policy in autoscaling.policies(name, autoscale).items():
        logical_id = {REQUESTS: "Scaling", WAKE: "Wake"}.get(kind, f"Scaling{kind.capitalize()}")
        properties = {**policy, "ScalingTargetId": {"Ref": "Limits"}}
        resources[logical_id] = resource("ApplicationAutoScaling::ScalingPolicy", properties)
    if "Wake" in resources:
        alarm = {**autoscaling.wake_alarm(name, autoscale.of), "AlarmActions": [{"Ref": "Wake"}]}
        resources["Backlog"] = resource("CloudWatch::Alarm", alarm)
    return resources
