"""``sm template``: each format is valid for its own tool and describes what ``sm deploy`` would create."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.sm_command import RunSm
from tests.support.snapshots import changes, check_snapshot
from trireme_tools.deploy.deployment_plan import Plan
from trireme_tools.deploy.gpu_hosts import known_amis
from trireme_tools.deploy.model_data import ModelData

IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/trireme:0.1.0"
DATA = "s3://models/cats/model.tar.gz"
ROLE = "arn:aws:iam::123456789012:role/service-role/cats"
OPTIONS = f"--image {IMAGE} --model-data {DATA}"
OLD_AMI = "al2-ami-sagemaker-inference-gpu-2-1"
AUTOSCALED = "--autoscale 1:4 --target-invocations 600"
ASYNC = "--async s3://answers/out --autoscale 0:2 --target-invocations 5"
#: The further options of every kind of deployment.
OPTIONS_BY_KIND = {
    "plain": f"--role {ROLE}",
    "role": "--shadow s3://models/cats/next.tar.gz",
    "processor": "--instance-type ml.c5.xlarge",
    "scaled": AUTOSCALED,
    "named": "--env A='${x}' --env B='%{y}' --startup-timeout 600 --tags team=cats 'a b=c d'",
    "utilisation": f"{AUTOSCALED} --target-cpu 280 --target-gpu 70",
    "mme": "--mme",
    "shadow": "--shadow s3://models/cats/next.tar.gz --percent 20",
    "async": f"{ASYNC} --notify arn:aws:sns:eu-west-1:123456789012:answers",
    "files": "--model-data s3://models/cats/ --set 'ProductionVariants[0].VolumeSizeInGB=50'",
    "serverless": "--serverless 4096:5",
    "watched": "--alarms 2:750",
}
#: The kind of deployment whose image contains the models.
BAKED_KIND = "baked"


def options_of(kind: str) -> str:
    return f"--image {IMAGE}" if kind == BAKED_KIND else f"{OPTIONS} {OPTIONS_BY_KIND[kind]}"


def print_text(sm: RunSm, format_: str, *options: str) -> str:
    words = [word for each in options for word in shlex.split(each)]
    command = sm("template", "cats", "--format", format_, *words)
    assert command.status == 0, command.err
    return command.out


def print_template(sm: RunSm, format_: str, *options: str) -> Any:
    return json.loads(print_text(sm, format_, *options))


@pytest.mark.parametrize("format_", ["cloudformation", "terraform"])
def test_the_templates_are_those_that_were_read_last(sm: RunSm, format_: str) -> None:
    printed = {}
    for kind in (*OPTIONS_BY_KIND, BAKED_KIND):
        role = "" if kind == "role" else f"--role {ROLE}"
        text = print_text(sm, format_, options_of(kind), role).replace(known_amis()[-1], "THE-NEWEST-AMI")
        # A name has a hash of the whole description, which changes with each of its lines.
        printed[kind] = re.sub(r"cats-[0-9a-f]{12}", "cats-HASH", text)
    plain = printed.pop("plain")
    check_snapshot(f"{format_}.json", plain)
    check_snapshot(f"{format_}-options.diff", changes(plain, printed))


def test_cfn_lint_finds_nothing_in_any_cloudformation_template(sm: RunSm, tmp_path: Path) -> None:
    for kind in (*OPTIONS_BY_KIND, BAKED_KIND):
        template = print_template(sm, "cloudformation", options_of(kind))
        (tmp_path / f"{kind}.yaml").write_text(json.dumps(template, indent=2))
    command = [str(Path(sys.executable).with_name("cfn-lint")), "-r", "eu-west-1", "-f", "parseable", "--"]
    completed = subprocess.run(
        [*command, *sorted(map(str, tmp_path.glob("*.yaml")))], capture_output=True, text=True
    )
    assert (completed.returncode, completed.stdout) == (0, ""), completed.stdout + completed.stderr


def test_a_stack_has_the_resources_that_deploy_creates(sm: RunSm) -> None:
    resources = print_template(sm, "cloudformation", options_of("plain"))["Resources"]
    plan = Plan("cats", IMAGE, ModelData(DATA), ROLE, ami=known_amis()[-1])
    assert resources["Model"]["Properties"] == plan.model()
    assert (
        resources["Endpoint"]["Properties"] | {"EndpointConfigName": plan.configuration_name}
        == plan.endpoint()
    )
    expected = plan.configuration()
    expected["ProductionVariants"][0]["ModelName"] = {"Fn::GetAtt": ["Model", "ModelName"]}
    assert resources["Configuration"]["Properties"] == expected


@pytest.mark.parametrize(("options", "ami"), [(f"--ami {OLD_AMI}", OLD_AMI), ("--ami none", None)])
def test_a_shadows_gpu_host_has_the_driver_that_productions_has(
    sm: RunSm, options: str, ami: str | None
) -> None:
    resources = print_template(sm, "cloudformation", options_of("shadow"), options)["Resources"]
    properties = resources["Configuration"]["Properties"]
    variants = (*properties["ProductionVariants"], *properties["ShadowProductionVariants"])
    assert [variant.get("InferenceAmiVersion") for variant in variants] == [ami, ami]


VARIANT = (
    "variant_name model_name instance_type initial_instance_count initial_variant_weight"
    " volume_size_in_gb inference_ami_version container_startup_health_check_timeout_in_seconds model_data_download_timeout_in_seconds"
)
SCALED = "resource_id scalable_dimension service_namespace"


def block(names: str, **blocks: Any) -> dict[str, Any]:
    """The arguments of a block, and the blocks in it."""
    return {**dict.fromkeys(names.split()), **blocks}


ROUTING = {"routing_config": block("routing_strategy")}
OUTPUT = block("s3_output_path s3_failure_path", notification_config=block("success_topic error_topic"))
S3_SOURCE = block("s3_uri s3_data_type compression_type")
CONTAINER = block(
    "image mode model_data_url", environment=None, model_data_source=block("", s3_data_source=S3_SOURCE)
)


#: Arguments and blocks of Terraform's AWS provider, from its pages website/docs/r/*.html.markdown (MPL-2.0;
#: names only): sagemaker_endpoint_configuration at commit 00c59d9f, sagemaker_model at 00c0f530 and later,
#: appautoscaling_policy at 027ee4e1, and the pages of the others. A block is a dict, a map of the user's None.
TERRAFORM: dict[str, Any] = {
    "aws_iam_role": block("name assume_role_policy tags"),
    "aws_iam_role_policy": block("name role policy"),
    "aws_sagemaker_model": block("name execution_role_arn tags", primary_container=CONTAINER),
    "aws_sagemaker_endpoint_configuration": block(
        "name tags",
        production_variants=block(
            VARIANT, serverless_config=block("max_concurrency memory_size_in_mb"), **ROUTING
        ),
        shadow_production_variants=block(VARIANT, **ROUTING),
        async_inference_config=block("", output_config=OUTPUT),
    ),
    "aws_sagemaker_endpoint": block("name endpoint_config_name tags"),
    "aws_appautoscaling_target": block(f"min_capacity max_capacity {SCALED}"),
    "aws_appautoscaling_policy": block(
        f"name policy_type {SCALED}",
        target_tracking_scaling_policy_configuration=block(
            "target_value scale_in_cooldown scale_out_cooldown",
            predefined_metric_specification=block("predefined_metric_type"),
            customized_metric_specification=block(
                "metric_name namespace statistic unit", dimensions=block("name value")
            ),
        ),
        step_scaling_policy_configuration=block(
            "adjustment_type metric_aggregation_type cooldown",
            step_adjustment=block("metric_interval_lower_bound scaling_adjustment"),
        ),
    ),
    "aws_cloudwatch_metric_alarm": block(
        "alarm_name alarm_description extended_statistic metric_name namespace statistic threshold period"
        " evaluation_periods datapoints_to_alarm comparison_operator treat_missing_data alarm_actions tags",
        dimensions=None,
        metric_query=block(
            "id expression label return_data",
            metric=block("metric_name namespace period stat", dimensions=None),
        ),
    ),
}
#: Arguments that every resource may have.
META_ARGUMENTS = {"depends_on", "lifecycle"}


def unknown_arguments(arguments: Any, known: Any, path: str) -> list[str]:
    """The paths of arguments that Terraform does not know."""
    if isinstance(arguments, list):
        return [unknown for item in arguments for unknown in unknown_arguments(item, known, path)]
    if not isinstance(arguments, dict) or not isinstance(known, dict | set):
        return []
    unknown = [f"{path}.{name}" for name in arguments if name not in known]
    members = known if isinstance(known, dict) else {}
    return unknown + [
        nested
        for name, value in arguments.items()
        for nested in unknown_arguments(value, members.get(name), f"{path}.{name}")
    ]


@pytest.mark.parametrize("kind", [*OPTIONS_BY_KIND, BAKED_KIND])
def test_terraform_knows_every_argument_and_reference(sm: RunSm, kind: str) -> None:
    resources = print_template(sm, "terraform", options_of(kind))["resource"]
    for name, resources_by_name in resources.items():
        for resource in resources_by_name.values():
            arguments = {key: value for key, value in resource.items() if key not in META_ARGUMENTS}
            assert unknown_arguments(arguments, TERRAFORM[name], name) == []
    text = json.dumps(resources).replace("$${", "")
    references = [part.partition("}")[0] for part in text.split("${")[1:]]
    assert references
    for reference in references:
        resource_type, name, _ = reference.split(".")
        assert name in resources[resource_type], reference


#: Options, with the words that the error names. ``O`` stands for :data:`OPTIONS`, ``I`` for the image alone.
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
    f"cats I-3f2c9a1b7d04 --role {ROLE} --ami {OLD_AMI}": "driver",
    f"cats I-3f2c9a1b7d04 --role {ROLE} --instance-type ml.p3.2xlarge": "ml.p3.2xlarge",
    "cats I --gpus 1": "--gpus",
}


@pytest.mark.parametrize(("line", "named"), INVALID.items())
def test_invalid_options_are_refused_by_their_names(sm: RunSm, line: str, named: str) -> None:
    words = line.replace("O", OPTIONS, 1) if " O" in line else line.replace("I", f"--image {IMAGE}", 1)
    command = sm("template", *words.split())
    assert (command.status, command.out) == (1, "")
    assert [word for word in named.split() if word not in command.err] == []
