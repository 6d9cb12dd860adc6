"""``sm template``: each form is one that its own tool takes, and says what ``sm deploy`` would make."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sm.tools.deploy.deployment_plan import Plan
from tests.support.sm_command import RunSm

IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/trireme:0.1.0"
DATA = "s3://models/cats/model.tar.gz"
ROLE = "arn:aws:iam::123456789012:role/service-role/cats"
GIVEN = ("--image", IMAGE, "--model-data", DATA)
SCALED = ("--autoscale", "1:4", "--target-invocations", "600")

#: Every kind of deployment.
KINDS = {
    "plain": (),
    "role": ("--role", ROLE),
    "scaled": SCALED,
    "all": (
        *SCALED,
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
    "utilisation": (*SCALED, "--target-cpu", "280", "--target-gpu", "70"),
    "mme": ("--mme",),
    "async": ("--async", "s3://answers/out", "--autoscale", "0:2", "--target-invocations", "5"),
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


#: The kind whose image has the models inside.
BAKED = "baked"


def words(kind: str) -> tuple[str, ...]:
    return ("--image", IMAGE) if kind == BAKED else (*GIVEN, *KINDS[kind])


def made(sm: RunSm, form: str, *given: str) -> Any:
    said = sm("template", "cats", "--format", form, *given)
    assert said.status == 0, said.err
    return json.loads(said.out)


def test_cfn_lint_finds_nothing_in_any_cloudformation_template(sm: RunSm, tmp_path: Path) -> None:
    for kind in (*KINDS, BAKED):
        template = made(sm, "cloudformation", *words(kind))
        (tmp_path / f"{kind}.yaml").write_text(json.dumps(template, indent=2))
    command = [str(Path(sys.executable).with_name("cfn-lint")), "-r", "eu-west-1", "-f", "parseable", "--"]
    lint = subprocess.run(
        [*command, *sorted(map(str, tmp_path.glob("*.yaml")))], capture_output=True, text=True
    )
    assert (lint.returncode, lint.stdout) == (0, ""), lint.stdout + lint.stderr


def test_a_stack_is_what_deploy_makes(sm: RunSm) -> None:
    resources = made(sm, "cloudformation", *words("role"))["Resources"]
    plan = Plan("cats", IMAGE, DATA, ROLE)
    assert resources["Model"]["Properties"] == plan.model()
    assert (
        resources["Endpoint"]["Properties"] | {"EndpointConfigName": plan.configuration_name}
        == plan.endpoint()
    )
    wanted = plan.configuration()
    wanted["ProductionVariants"][0]["ModelName"] = {"Fn::GetAtt": ["Model", "ModelName"]}
    assert resources["Configuration"]["Properties"] == wanted


def test_without_a_role_the_stack_makes_the_least_one(sm: RunSm) -> None:
    resources = made(sm, "cloudformation", *GIVEN)["Resources"]
    policy = resources["Role"]["Properties"]["Policies"][0]["PolicyDocument"]
    assert {row["Sid"] for row in policy["Statement"]} >= {"ReadModels", "PullImage", "WriteLogs"}
    assert resources["Model"]["Properties"]["ExecutionRoleArn"] == {"Fn::GetAtt": ["Role", "Arn"]}


#: Arguments and blocks of Terraform's AWS provider, from its pages website/docs/r/*.html.markdown (MPL-2.0;
#: names only): sagemaker_endpoint_configuration at commit 00c59d9f, sagemaker_model at 00c0f530,
#: appautoscaling_policy at 027ee4e1, and the pages of the others. A block is a dict, a map of the user's None.
TERRAFORM: dict[str, Any] = {
    "aws_iam_role": {"name", "assume_role_policy", "tags"},
    "aws_iam_role_policy": {"name", "role", "policy"},
    "aws_sagemaker_model": {
        "name": 0,
        "execution_role_arn": 0,
        "primary_container": {"image": 0, "mode": 0, "model_data_url": 0, "environment": None},
        "tags": None,
    },
    "aws_sagemaker_endpoint_configuration": {
        "name": 0,
        "production_variants": {
            "variant_name": 0,
            "model_name": 0,
            "instance_type": 0,
            "initial_instance_count": 0,
            "initial_variant_weight": 0,
            "container_startup_health_check_timeout_in_seconds": 0,
            "model_data_download_timeout_in_seconds": 0,
            "serverless_config": {"max_concurrency": 0, "memory_size_in_mb": 0},
        },
        "async_inference_config": {"output_config": {"s3_output_path": 0, "s3_failure_path": 0}},
        "tags": None,
    },
    "aws_sagemaker_endpoint": {"name": 0, "endpoint_config_name": 0, "tags": None},
    "aws_appautoscaling_target": {
        "min_capacity": 0,
        "max_capacity": 0,
        "resource_id": 0,
        "scalable_dimension": 0,
        "service_namespace": 0,
    },
    "aws_appautoscaling_policy": {
        "name": 0,
        "policy_type": 0,
        "resource_id": 0,
        "scalable_dimension": 0,
        "service_namespace": 0,
        "target_tracking_scaling_policy_configuration": {
            "target_value": 0,
            "scale_in_cooldown": 0,
            "scale_out_cooldown": 0,
            "predefined_metric_specification": {"predefined_metric_type": 0},
            "customized_metric_specification": {
                "metric_name": 0,
                "namespace": 0,
                "statistic": 0,
                "unit": 0,
                "dimensions": {"name": 0, "value": 0},
            },
        },
        "step_scaling_policy_configuration": {
            "adjustment_type": 0,
            "metric_aggregation_type": 0,
            "cooldown": 0,
            "step_adjustment": {"metric_interval_lower_bound": 0, "scaling_adjustment": 0},
        },
    },
    "aws_cloudwatch_metric_alarm": {
        "alarm_name": 0,
        "alarm_description": 0,
        "extended_statistic": 0,
        "metric_query": {
            "id": 0,
            "expression": 0,
            "label": 0,
            "return_data": 0,
            "metric": {"metric_name": 0, "namespace": 0, "period": 0, "stat": 0, "dimensions": None},
        },
        "metric_name": 0,
        "namespace": 0,
        "statistic": 0,
        "dimensions": None,
        "threshold": 0,
        "period": 0,
        "evaluation_periods": 0,
        "datapoints_to_alarm": 0,
        "comparison_operator": 0,
        "treat_missing_data": 0,
        "alarm_actions": 0,
        "tags": None,
    },
}
#: Of every resource.
META = {"depends_on", "lifecycle"}


def foreign(given: Any, known: Any, place: str) -> list[str]:
    """Arguments that Terraform does not know."""
    if isinstance(given, list):
        return [found for one in given for found in foreign(one, known, place)]
    if not isinstance(given, dict) or not isinstance(known, dict | set):
        return []
    found = [f"{place}.{name}" for name in given if name not in known]
    members = known if isinstance(known, dict) else {}
    return found + [
        deeper
        for name, value in given.items()
        for deeper in foreign(value, members.get(name), f"{place}.{name}")
    ]


@pytest.mark.parametrize("kind", [*KINDS, BAKED])
def test_terraform_knows_every_argument_and_reference(sm: RunSm, kind: str) -> None:
    resources = made(sm, "terraform", *words(kind))["resource"]
    for name, named in resources.items():
        for each in named.values():
            own = {key: value for key, value in each.items() if key not in META}
            assert foreign(own, TERRAFORM[name], name) == []
    whole = json.dumps(resources).replace("$${", "")
    references = [part.partition("}")[0] for part in whole.split("${")[1:]]
    assert references
    for reference in references:
        target, name, _ = reference.split(".")
        assert name in resources[target], reference


def test_a_text_that_looks_like_a_reference_stays_a_text(sm: RunSm) -> None:
    resources = made(sm, "terraform", *words("all"))["resource"]
    container = resources["aws_sagemaker_model"]["this"]["primary_container"]
    assert container["environment"] == {"A": "$${x}", "B": "%%{y}"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("cats",), "--image is needed"),
        (("cats", "--image", IMAGE, "--mme"), "--mme wants --model-data"),
        (("cats", *GIVEN, "--target-cpu", "70"), "--target-cpu and --target-gpu go with --autoscale MIN:MAX"),
        (
            ("cats", *GIVEN, "--format", "kserve", "--autoscale", "1:2", "--target-gpu", "70"),
            "--target-invocations and --target-gpu are SageMaker's",
        ),
        (("ca_ts", *GIVEN), "'ca_ts' cannot be a deployment's name"),
        (
            ("cats", "--image", "trireme:latest", "--model-data", DATA),
            "'trireme:latest' is no image in ECR: ",
        ),
        (("cats", "--image", IMAGE, "--model-data", "model"), "'model' is no place on S3: "),
        (("cats", *GIVEN, "--autoscale", "1:2"), "--autoscale wants --target-invocations N"),
        (("cats", *GIVEN, "--autoscale", "0:2", "--target-invocations", "5"), "--autoscale 0:MAX goes with"),
        (("cats", *GIVEN, "--serverless", "4096:5", *SCALED), "--serverless goes without --autoscale"),
        (("cats", *GIVEN, "--mme", "--format", "kserve"), "--mme is SageMaker's"),
        (("cats", *GIVEN, "--format", "kubernetes"), f"{DATA!r} cannot be fetched by Kubernetes itself"),
        (
            (
                "cats",
                "--image",
                IMAGE,
                "--format",
                "kubernetes",
                "--autoscale",
                "1:2",
                "--target-invocations",
                "9",
            ),
            "--target-invocations and --target-gpu are SageMaker's",
        ),
        (("cats", "--image", IMAGE, "--format", "helm"), "--format helm and --out FOLDER go together"),
        (("cats", *GIVEN, "--target-in-flight", "4"), "--target-in-flight goes with --autoscale"),
        (
            ("cats", "--image", IMAGE, "--format", "kubernetes", "--env", "TRIREME_DRAIN_SECONDS=x"),
            "TRIREME_DRAIN",
        ),
        (("Cats", *GIVEN, "--format", "kserve"), "'Cats' is no name for Kubernetes"),
    ],
)
def test_what_cannot_be_is_no_template(sm: RunSm, given: tuple[str, ...], sentence: str) -> None:
    said = sm("template", *given)
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith(f"sm: {sentence}")
