"""Fields of SageMaker's API on the command line: read, checked against botocore's model, and put into calls."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from sm.errors import CommandError
from trireme_tools.deploy import api_fields
from trireme_tools.deploy.api_fields import CONFIGURATION, MODEL, UPDATE

VARIANT = {"VariantName": "AllTraffic", "InstanceType": "ml.g5.xlarge"}


def read(*texts: str, extra: Path | None = None) -> tuple[api_fields.Assignment, ...]:
    return api_fields.read(argparse.Namespace(fields=list(texts), extra=extra))


def applied(call: str, *texts: str, extra: Path | None = None) -> dict[str, Any]:
    arguments: dict[str, dict[str, Any]] = {
        CONFIGURATION: {"ProductionVariants": [VARIANT]},
        MODEL: {"ExecutionRoleArn": "arn"},
    }
    return api_fields.apply(call, arguments.get(call, {}), read(*texts, extra=extra))


@pytest.mark.parametrize(
    ("text", "call", "path", "value"),
    [
        ("ProductionVariants[0].VolumeSizeInGB=50", CONFIGURATION, "ProductionVariants[0].VolumeSizeInGB", 50),
        ("PrimaryContainer.Environment.A=1", MODEL, "PrimaryContainer.Environment.A", "1"),
        ('VpcConfig.Subnets=["subnet-1"]', MODEL, "VpcConfig.Subnets[0]", "subnet-1"),
        ("CreateEndpointConfig.VpcConfig.Subnets[0]=s", CONFIGURATION, "VpcConfig.Subnets[0]", "s"),
        ("DeploymentConfig.RollingUpdatePolicy.WaitIntervalInSeconds=9", UPDATE,
         "DeploymentConfig.RollingUpdatePolicy.WaitIntervalInSeconds", 9),
        ("KmsKeyId=a=b", CONFIGURATION, "KmsKeyId", "a=b"),
    ],
)  # fmt: skip
def test_a_field_finds_its_call_and_its_type(text: str, call: str, path: str, value: Any) -> None:
    (assignment,) = read(text)
    assert (assignment.call, assignment.path, assignment.value) == (call, path, value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        # A wrong name gets the nearest right one.
        ("ProductionVariant[0].VolumeSizeInGB=50", "ProductionVariants"),
        ("ProductionVariants[0].EnableSsmAcces=true", "EnableSSMAccess"),
        ('ProductionVariants[0].ManagedInstanceScaling={"MinInstances": 0}', "MinInstanceCount"),
        # What the API would refuse.
        ("ProductionVariants[0].VolumeSizeInGB=large", "VolumeSizeInGB"),
        ("ProductionVariants.VolumeSizeInGB=5", "ProductionVariants"),
        ("VpcConfig[0]=a", "VpcConfig"),
        ("KmsKeyId", "KmsKeyId"),
        ("CreateModel=a", "CreateModel"),
        ("ProductionVariants[0].VariantName=other", "VariantName"),
        ("EndpointName=other", "EndpointName"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(text: str, named: str) -> None:
    with pytest.raises(CommandError, match=named):
        read(text)


def test_fields_are_merged_into_our_own_and_null_removes_one() -> None:
    changed = applied(
        CONFIGURATION,
        "ProductionVariants[0].VolumeSizeInGB=50",
        "ProductionVariants[0].InstanceType=null",
        'ProductionVariants[0].InstancePools=[{"InstanceType": "ml.g5.xlarge"}, {"InstanceType": "ml.g6.xlarge"}]',
    )
    pools = [{"InstanceType": "ml.g5.xlarge"}, {"InstanceType": "ml.g6.xlarge"}]
    expected = {"VariantName": "AllTraffic", "VolumeSizeInGB": 50, "InstancePools": pools}
    assert changed == {"ProductionVariants": [expected]}
    assert VARIANT["InstanceType"] == "ml.g5.xlarge", "the plan's own arguments were changed"
    with pytest.raises(CommandError):
        applied(CONFIGURATION, "ProductionVariants[2].VolumeSizeInGB=50")


def test_a_file_has_fields_of_several_calls_and_set_wins(tmp_path: Path) -> None:
    file = tmp_path / "extra.json"
    variant = {"CoreDumpConfig": {"DestinationS3Uri": "s3://dumps/"}, "VolumeSizeInGB": 10}
    vpc = {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]}
    file.write_text(json.dumps({"ProductionVariants": [variant], "CreateModel": {"VpcConfig": vpc}}))
    changed = applied(CONFIGURATION, "ProductionVariants[0].VolumeSizeInGB=20", extra=file)
    assert changed["ProductionVariants"] == [{**VARIANT, **variant, "VolumeSizeInGB": 20}]
    assert applied(MODEL, extra=file) == {"ExecutionRoleArn": "arn", "VpcConfig": vpc}


def test_a_missing_member_is_found_before_the_call() -> None:
    with pytest.raises(CommandError, match="SecurityGroupIds"):
        api_fields.check(MODEL, {"ModelName": "m", **applied(MODEL, "VpcConfig.Subnets[0]=subnet-1")})
