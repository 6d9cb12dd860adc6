"""The deployment as a stack of CloudFormation: its properties are SageMaker's own arguments."""

from __future__ import annotations

from typing import Any

from sm.tools.deploy import autoscaling
from sm.tools.deploy.scaling import REQUESTS
from sm.tools.templates.policies import trust
from sm.tools.templates.stack import Stack

Resource = dict[str, Any]


def template(stack: Stack) -> dict[str, Any]:
    """JSON, which is YAML as well."""
    resources: dict[str, Resource] = {} if stack.plan.role else {"Role": role(stack)}
    resources |= {"Model": model(stack), "Configuration": configuration(stack), "Endpoint": endpoint(stack)}
    if stack.scaling:
        resources |= scaling(stack)
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
            "AssumeRolePolicyDocument": trust("sagemaker.amazonaws.com"),
            "Policies": [policy],
            "Tags": stack.plan.all_tags(),
        },
    )


def model(stack: Stack) -> Resource:
    arn = stack.plan.role or attribute("Role", "Arn")
    return resource("SageMaker::Model", {**stack.plan.model(), "ExecutionRoleArn": arn})


def configuration(stack: Stack) -> Resource:
    wanted = stack.plan.configuration()
    own = {"ModelName": attribute("Model", "ModelName")}
    wanted["ProductionVariants"] = [variant | own for variant in wanted["ProductionVariants"]]
    return resource("SageMaker::EndpointConfig", wanted)


def endpoint(stack: Stack) -> Resource:
    name = attribute("Configuration", "EndpointConfigName")
    return resource("SageMaker::Endpoint", {**stack.plan.endpoint(), "EndpointConfigName": name})


def scaling(stack: Stack) -> dict[str, Resource]:
    wanted = stack.scaling
    assert wanted is not None
    name, asynchronous = stack.plan.name, bool(stack.plan.output)
    limits = {**autoscaling.what(name), "MinCapacity": wanted.least, "MaxCapacity": wanted.most}
    made = {
        "Limits": {**resource("ApplicationAutoScaling::ScalableTarget", limits), "DependsOn": "Endpoint"},
    }
    for each in wanted.targets:
        ending = "" if each.kind == REQUESTS else each.kind.capitalize()
        made[f"Scaling{ending}"] = policy(
            autoscaling.policy_name(name, each),
            "TargetTrackingScaling",
            {"TargetTrackingScalingPolicyConfiguration": autoscaling.tracking(name, each, asynchronous)},
        )
    if asynchronous and wanted.least == 0:
        made |= waking(name)
    return made


def policy(name: str, kind: str, configuration: dict[str, Any]) -> Resource:
    return resource(
        "ApplicationAutoScaling::ScalingPolicy",
        {"PolicyName": name, "PolicyType": kind, "ScalingTargetId": {"Ref": "Limits"}, **configuration},
    )


def waking(name: str) -> dict[str, Resource]:
    """The first instance, which a backlog for each instance cannot ask for."""
    alarm = {**autoscaling.waking_alarm(name), "AlarmActions": [{"Ref": "Wake"}]}
    step = {"StepScalingPolicyConfiguration": autoscaling.waking()}
    return {
        "Wake": policy(f"{name}-wake", "StepScaling", step),
        "Backlog": resource("CloudWatch::Alarm", alarm),
    }
