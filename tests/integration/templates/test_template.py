"""``sm template``: each format is valid for its own tool and describes what ``sm deploy`` would create."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.integration.templates.linting import cfn_lint
from tests.support.sm_command import RunSm
from tests.support.snapshots import changes, check_snapshot
from trireme_tools.deploy.deployment_plan import DeploymentPlan
from trireme_tools.deploy.gpu_hosts import known_amis
from trireme_tools.deploy.model_data import ModelData

IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/trireme:0.1.0"
DATA = "s3://models/cats/model.tar.gz"
ROLE = "--role arn:aws:iam::123456789012:role/service-role/cats"
OLD_AMI = "al2-ami-sagemaker-inference-gpu-2-1"
PLAIN = f"--image {IMAGE} --model-data {DATA}"
SHADOW = "--shadow s3://models/cats/next.tar.gz"
#: The options of every kind of deployment.
KINDS = {
    "plain": f"{PLAIN} {ROLE}",
    "named": f"{PLAIN} {ROLE} --env A='${{x}}' --env B='%{{y}}' --startup-timeout 600 --tags team=cats 'a b=c d'",
    "utilisation": f"{PLAIN} {ROLE} --autoscale 1:4 --target-invocations 600 --target-cpu 280 --target-gpu 70",
    "mme": f"{PLAIN} {ROLE} --mme",
    "shadow": f"{PLAIN} {ROLE} {SHADOW} --percent 20",
    "async": f"{PLAIN} {ROLE} --async s3://answers/out --autoscale 0:2 --target-invocations 5"
    " --notify arn:aws:sns:eu-west-1:123456789012:answers",
    "files": f"{PLAIN} {ROLE} --model-data s3://models/cats/ --set 'ProductionVariants[0].VolumeSizeInGB=50'",
    "serverless": f"{PLAIN} {ROLE} --serverless 4096:5",
    "watched": f"{PLAIN} {ROLE} --alarms 2:750",
    "baked": f"--image {IMAGE} {ROLE}",
}
#: Those that create the role too, whose policy is what sm iam prints.
ALL_KINDS = [*KINDS.values(), f"{PLAIN} {SHADOW}", f"{PLAIN} --instance-type ml.c5.xlarge"]


def print_text(sm: RunSm, format_: str, options: str) -> str:
    command = sm("template", "cats", "--format", format_, *shlex.split(options))
    assert command.status == 0, command.err
    return command.out


def print_template(sm: RunSm, format_: str, options: str) -> Any:
    return json.loads(print_text(sm, format_, options))


@pytest.mark.parametrize("format_", ["cloudformation", "terraform"])
def test_the_templates_are_those_that_were_read_last(sm: RunSm, format_: str) -> None:
    printed = {}
    for kind, options in KINDS.items():
        text = print_text(sm, format_, options).replace(known_amis()[-1], "THE-NEWEST-AMI")
        # A name has a hash of the whole description, which changes with each of its lines.
        printed[kind] = re.sub(r"cats-[0-9a-f]{12}", "cats-HASH", text)
    plain = printed.pop("plain")
    check_snapshot(f"{format_}.json", plain)
    check_snapshot(f"{format_}-options.diff", changes(plain, printed))


def test_the_role_is_that_of_sm_iam(sm: RunSm) -> None:
    """A template does not know the account of the logs."""
    policies = sm("iam", "cats", *PLAIN.split()).out.replace(":123456789012:log-group", ":*:log-group")
    role = json.loads(policies)["role"]
    stack = print_template(sm, "cloudformation", PLAIN)["Resources"]["Role"]["Properties"]
    assert stack["AssumeRolePolicyDocument"] == role["trust"]
    assert [policy["PolicyDocument"] for policy in stack["Policies"]] == [role["policy"]]
    terraform = print_template(sm, "terraform", PLAIN)["resource"]
    assert json.loads(terraform["aws_iam_role"]["this"]["assume_role_policy"]) == role["trust"]
    assert json.loads(terraform["aws_iam_role_policy"]["this"]["policy"]) == role["policy"]


def test_cfn_lint_finds_nothing_in_any_cloudformation_template(sm: RunSm, tmp_path: Path) -> None:
    for number, options in enumerate(ALL_KINDS):
        (tmp_path / f"{number}.json").write_text(print_text(sm, "cloudformation", options))
    assert cfn_lint(*tmp_path.glob("*.json")) == ""


def test_a_stack_has_the_resources_that_deploy_creates(sm: RunSm) -> None:
    resources = print_template(sm, "cloudformation", KINDS["plain"])["Resources"]
    plan = DeploymentPlan("cats", IMAGE, ModelData(DATA), ROLE.split()[1], ami=known_amis()[-1])
    assert resources["Model"]["Properties"] == plan.model()
    name = {"EndpointConfigName": plan.configuration_name}
    assert resources["Endpoint"]["Properties"] | name == plan.endpoint()
    expected = plan.configuration()
    expected["ProductionVariants"][0]["ModelName"] = {"Fn::GetAtt": ["Model", "ModelName"]}
    assert resources["Configuration"]["Properties"] == expected


@pytest.mark.parametrize(("options", "ami"), [(f"--ami {OLD_AMI}", OLD_AMI), ("--ami none", None)])
def test_a_shadows_gpu_host_has_the_driver_that_productions_has(
    sm: RunSm, options: str, ami: str | None
) -> None:
    template = print_template(sm, "cloudformation", f"{KINDS['shadow']} {options}")
    properties = template["Resources"]["Configuration"]["Properties"]
    variants = (*properties["ProductionVariants"], *properties["ShadowProductionVariants"])
    assert [variant.get("InferenceAmiVersion") for variant in variants] == [ami, ami]


#: Names of arguments and blocks of Terraform's AWS provider, from its pages website/docs/r/*.html.markdown (MPL-2.0;
#: names only): sagemaker_endpoint_configuration at commit 00c59d9f, sagemaker_model at 00c0f530 and later,
#: appautoscaling_policy at 027ee4e1, and the pages of the others.
TERRAFORM = {
    "aws_iam_role": "name assume_role_policy tags",
    "aws_iam_role_policy": "name role policy",
    "aws_sagemaker_model": "name execution_role_arn tags primary_container image mode model_data_url environment"
    " model_data_source s3_data_source s3_uri s3_data_type compression_type",
    "aws_sagemaker_endpoint_configuration": "name tags production_variants shadow_production_variants variant_name"
    " model_name instance_type initial_instance_count initial_variant_weight volume_size_in_gb inference_ami_version"
    " container_startup_health_check_timeout_in_seconds model_data_download_timeout_in_seconds serverless_config"
    " max_concurrency memory_size_in_mb routing_config routing_strategy async_inference_config output_config"
    " s3_output_path s3_failure_path notification_config success_topic error_topic",
    "aws_sagemaker_endpoint": "name endpoint_config_name tags",
    "aws_appautoscaling_target": "min_capacity max_capacity resource_id scalable_dimension service_namespace",
    "aws_appautoscaling_policy": "name policy_type resource_id scalable_dimension service_namespace target_value"
    " target_tracking_scaling_policy_configuration scale_in_cooldown scale_out_cooldown metric_name namespace"
    " predefined_metric_specification predefined_metric_type customized_metric_specification statistic unit"
    " dimensions value step_scaling_policy_configuration adjustment_type metric_aggregation_type cooldown"
    " step_adjustment metric_interval_lower_bound scaling_adjustment",
    "aws_cloudwatch_metric_alarm": "alarm_name alarm_description extended_statistic metric_name namespace statistic"
    " threshold period evaluation_periods datapoints_to_alarm comparison_operator treat_missing_data alarm_actions"
    " tags dimensions metric_query id expression label return_data metric stat",
}
#: Maps whose keys are the user's or CloudWatch's.
MAPS = {"environment", "tags", "dimensions", "lifecycle"}


def argument_names(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(argument_names, value))
    if not isinstance(value, dict):
        return set()
    nested = (argument_names(member) for name, member in value.items() if name not in MAPS)
    return set(value).union(*nested)


def test_terraform_knows_every_argument_and_reference(sm: RunSm) -> None:
    for options in ALL_KINDS:
        resources = print_template(sm, "terraform", options)["resource"]
        for type_, by_name in resources.items():
            for resource in by_name.values():
                assert argument_names(resource) - {"depends_on", "lifecycle"} <= set(TERRAFORM[type_].split())
        text = json.dumps(resources).replace("$${", "")
        references = [part.partition("}")[0] for part in text.split("${")[1:]]
        assert references
        for reference in references:
            resource_type, name, _ = reference.split(".")
            assert name in resources[resource_type], reference


#: Options, with the words that the error names. ``O`` stands for image and model data, ``I`` for the image alone.
INVALID = {
    "cats": "--image",
    "cats I --mme": "--mme --model-data",
    "cats O --target-cpu 70": "--target-cpu --autoscale",
    "cats O --format kserve --autoscale 1:2 --target-gpu 70": "--target-gpu SageMaker",
    "ca_ts O": "'ca_ts'",
    f"cats --image trireme:latest --model-data {DATA}": "'trireme:latest' ECR",
    "cats I --model-data model": "'model' S3",
    "cats O --autoscale 1:2": "--autoscale --target-invocations",
    "cats O --autoscale 0:2 --target-invocations 5": "--autoscale --async",
    "cats O --serverless 4096:5 --autoscale 1:4": "--serverless --autoscale",
    "cats O --mme --format kserve": "--mme SageMaker",
    "cats I --model-data models --format kubernetes": "'models'",
    "cats I --format kubernetes --autoscale 1:2 --target-invocations 9": "--target-invocations SageMaker",
    "cats I --format helm": "--format --out",
    "cats O --target-in-flight 4": "--target-in-flight --autoscale",
    "cats I --format kubernetes --env TRIREME_DRAIN_SECONDS=x": "TRIREME_DRAIN_SECONDS",
    "Cats O --format kserve": "'Cats' Kubernetes",
    f"cats I-3f2c9a1b7d04 {ROLE} --ami {OLD_AMI}": "driver",
    f"cats I-3f2c9a1b7d04 {ROLE} --instance-type ml.p3.2xlarge": "ml.p3.2xlarge",
    "cats I --gpus 1": "--gpus",
}


@pytest.mark.parametrize(("line", "named"), INVALID.items())
def test_invalid_options_are_refused_by_their_names(sm: RunSm, line: str, named: str) -> None:
    words = line.replace("O", PLAIN, 1) if " O" in line else line.replace("I", f"--image {IMAGE}", 1)
    command = sm("template", *words.split())
    assert (command.status, command.out) == (1, "")
    assert [word for word in named.split() if word not in command.err] == []


@pytest.mark.parametrize("version", ["23.02", "23.12"])
def test_every_region_has_the_image_of_the_notebooks_and_of_the_sdk(sm: RunSm, version: str) -> None:
    """The accounts of the notebooks' account_id_map, or the SDK's, as they were compared last."""
    check_snapshot(f"images-{version}.txt", sm("images", "--version", version).out)
    command = sm("images", "--region", "us-east-1", "--version", version)
    name = f"785573368785.dkr.ecr.us-east-1.amazonaws.com/sagemaker-tritonserver:{version}-py3"
    assert (command.status, command.out) == (0, f"{name}\n")
