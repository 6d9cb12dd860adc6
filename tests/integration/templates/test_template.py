"""``sm template``: each format is valid for its own tool and describes what ``sm deploy`` would create."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.sm_command import RunSm
from trireme_tools.deploy.deployment_plan import Plan
from trireme_tools.deploy.gpu_hosts import known_amis
from trireme_tools.deploy.model_data import ModelData

IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/trireme:0.1.0"
DATA = "s3://models/cats/model.tar.gz"
ROLE = "arn:aws:iam::123456789012:role/service-role/cats"
OPTIONS = ("--image", IMAGE, "--model-data", DATA)
OLD_AMI = "al2-ami-sagemaker-inference-gpu-2-1"
AUTOSCALED = ("--autoscale", "1:4", "--target-invocations", "600")

#: The further options of every kind of deployment.
OPTIONS_BY_KIND = {
    "plain": (),
    "role": ("--role", ROLE),
    "scaled": AUTOSCALED,
    "all": (
        *AUTOSCALED,
        "--env",
        "A=${x}",
        "--env",
        "B=%{y}",
        "--startup-timeout",
        "600",
        "--tags",
        "team=cats",
        "a b=c d",
    ),
    "utilisation": (*AUTOSCALED, "--target-cpu", "280", "--target-gpu", "70"),
    "mme": ("--mme",),
    "shadow": ("--shadow", "s3://models/cats/next.tar.gz", "--percent", "20"),
    "async": ("--async", "s3://answers/out", "--autoscale", "0:2", "--target-invocations", "5"),
    "told": ("--async", "s3://answers/out", "--notify", "arn:aws:sns:eu-west-1:123456789012:answers"),
    "files": ("--model-data", "s3://models/cats/", "--set", "ProductionVariants[0].VolumeSizeInGB=50"),
    "serverless": ("--serverless", "4096:5"),
    "watched": (
        "--alarms",
        "2:750",
        "--async",
        "s3://answers/out",
        "--autoscale",
        "0:2",
        "--target-invocations",
        "5",
    ),
}


#: The kind of deployment whose image contains the models.
BAKED_KIND = "baked"


def options_of(kind: str) -> tuple[str, ...]:
    return ("--image", IMAGE) if kind == BAKED_KIND else (*OPTIONS, *OPTIONS_BY_KIND[kind])


def print_template(sm: RunSm, format_: str, *options: str) -> Any:
    command = sm("template", "cats", "--format", format_, *options)
    assert command.status == 0, command.err
    return json.loads(command.out)


def test_cfn_lint_finds_nothing_in_any_cloudformation_template(sm: RunSm, tmp_path: Path) -> None:
    for kind in (*OPTIONS_BY_KIND, BAKED_KIND):
        template = print_template(sm, "cloudformation", *options_of(kind))
        (tmp_path / f"{kind}.yaml").write_text(json.dumps(template, indent=2))
    command = [str(Path(sys.executable).with_name("cfn-lint")), "-r", "eu-west-1", "-f", "parseable", "--"]
    completed = subprocess.run(
        [*command, *sorted(map(str, tmp_path.glob("*.yaml")))], capture_output=True, text=True
    )
    assert (completed.returncode, completed.stdout) == (0, ""), completed.stdout + completed.stderr


def test_a_stack_has_the_resources_that_deploy_creates(sm: RunSm) -> None:
    resources = print_template(sm, "cloudformation", *options_of("role"))["Resources"]
    plan = Plan("cats", IMAGE, ModelData(DATA), ROLE, ami=known_amis()[-1])
    assert resources["Model"]["Properties"] == plan.model()
    assert (
        resources["Endpoint"]["Properties"] | {"EndpointConfigName": plan.configuration_name}
        == plan.endpoint()
    )
    expected = plan.configuration()
    expected["ProductionVariants"][0]["ModelName"] = {"Fn::GetAtt": ["Model", "ModelName"]}
    assert resources["Configuration"]["Properties"] == expected


def test_without_a_role_the_stack_creates_one_with_few_permissions(sm: RunSm) -> None:
    resources = print_template(sm, "cloudformation", *OPTIONS)["Resources"]
    policy = resources["Role"]["Properties"]["Policies"][0]["PolicyDocument"]
    assert {statement["Sid"] for statement in policy["Statement"]} >= {"ReadModels", "PullImage", "WriteLogs"}
    assert resources["Model"]["Properties"]["ExecutionRoleArn"] == {"Fn::GetAtt": ["Role", "Arn"]}


def test_a_shadow_is_a_variant_with_a_model_of_its_own_that_the_role_may_read(sm: RunSm) -> None:
    resources = print_template(sm, "cloudformation", *options_of("shadow"))["Resources"]
    (variant,) = resources["Configuration"]["Properties"]["ShadowProductionVariants"]
    assert variant["ModelName"] == {"Fn::GetAtt": ["ShadowModel", "ModelName"]}
    assert (variant["VariantName"], variant["InitialVariantWeight"]) == ("shadow", 0.2)
    container = resources["ShadowModel"]["Properties"]["PrimaryContainer"]
    assert (container["Image"], container["ModelDataUrl"]) == (IMAGE, "s3://models/cats/next.tar.gz")
    policy = resources["Role"]["Properties"]["Policies"][0]["PolicyDocument"]
    readable = [row["Resource"] for row in policy["Statement"] if row["Sid"].endswith("ReadModels")]
    assert readable == ["arn:aws:s3:::models/cats/model.tar.gz", "arn:aws:s3:::models/cats/next.tar.gz"]


@pytest.mark.parametrize(
    ("options", "ami"),
    [((), known_amis()[-1]), (("--ami", OLD_AMI), OLD_AMI), (("--ami", "none"), None)],
)
def test_a_stacks_gpu_host_has_the_newest_driver_and_its_shadow_the_same(
    sm: RunSm, options: tuple[str, ...], ami: str | None
) -> None:
    configuration = print_template(sm, "cloudformation", *options_of("shadow"), *options)["Resources"]
    properties = configuration["Configuration"]["Properties"]
    variants = (*properties["ProductionVariants"], *properties["ShadowProductionVariants"])
    assert [variant.get("InferenceAmiVersion") for variant in variants] == [ami, ami]
    blocks = print_template(sm, "terraform", *options_of("shadow"), *options)["resource"]
    (block_,) = blocks["aws_sagemaker_endpoint_configuration"].values()
    assert [
        block_[f"{kind}production_variants"][0].get("inference_ami_version") for kind in ("", "shadow_")
    ] == [
        ami,
        ami,
    ]


def test_a_processors_stack_names_no_host_image(sm: RunSm) -> None:
    resources = print_template(sm, "cloudformation", *OPTIONS, "--instance-type", "ml.c5.xlarge")["Resources"]
    (variant,) = resources["Configuration"]["Properties"]["ProductionVariants"]
    assert "InferenceAmiVersion" not in variant


def test_a_stack_that_cannot_work_is_not_written(sm: RunSm) -> None:
    image = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/trireme:0.1.0-3f2c9a1b7d04"
    for more in (("--ami", OLD_AMI), ("--instance-type", "ml.p3.2xlarge")):
        result = sm("template", "cats", "--image", image, "--role", ROLE, *more)
        assert (result.status != 0, result.out) == (True, "")


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
    resources = print_template(sm, "terraform", *options_of(kind))["resource"]
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


def test_a_value_that_looks_like_a_terraform_reference_is_escaped(sm: RunSm) -> None:
    resources = print_template(sm, "terraform", *options_of("all"))["resource"]
    container = resources["aws_sagemaker_model"]["this"]["primary_container"]
    assert container["environment"] == {"A": "$${x}", "B": "%%{y}"}


SAGEMAKER_ONLY = "--target-invocations and --target-gpu are SageMaker's"
#: ``O`` stands for :data:`OPTIONS`, ``I`` for the image alone.
INVALID = {
    "cats": "--image is needed",
    "cats I --mme": "--mme needs --model-data",
    "cats O --target-cpu 70": "--target-cpu and --target-gpu need --autoscale MIN:MAX",
    "cats O --format kserve --autoscale 1:2 --target-gpu 70": SAGEMAKER_ONLY,
    "ca_ts O": "'ca_ts' cannot be a deployment's name",
    f"cats --image trireme:latest --model-data {DATA}": "'trireme:latest' is not an image in ECR: ",
    "cats I --model-data model": "'model' is not an S3 address: ",
    "cats O --autoscale 1:2": "--autoscale needs --target-invocations N",
    "cats O --autoscale 0:2 --target-invocations 5": "--autoscale 0:MAX needs --async",
    "cats O --serverless 4096:5 --autoscale 1:4": "--serverless cannot be combined with --autoscale",
    "cats O --mme --format kserve": "--mme is SageMaker's",
    "cats I --model-data models --format kubernetes": "a pod cannot reach 'models'",
    "cats I --format kubernetes --autoscale 1:2 --target-invocations 9": SAGEMAKER_ONLY,
    "cats I --format helm": "--format helm and --out FOLDER need each other",
    "cats O --target-in-flight 4": "--target-in-flight needs --autoscale",
    "cats I --format kubernetes --env TRIREME_DRAIN_SECONDS=x": "TRIREME_DRAIN",
    "Cats O --format kserve": "'Cats' is not a name for Kubernetes",
}


@pytest.mark.parametrize(("line", "sentence"), INVALID.items())
def test_invalid_options_are_refused_with_a_reason(sm: RunSm, line: str, sentence: str) -> None:
    words = {"O": OPTIONS, "I": ("--image", IMAGE)}
    command = sm("template", *(option for word in line.split() for option in words.get(word, (word,))))
    assert (command.status, command.out) == (1, "")
    assert command.err.startswith(f"sm: {sentence}")
