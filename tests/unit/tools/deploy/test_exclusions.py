"""What SageMaker refuses is refused before anything is sent, and its neighbours are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sm.errors import CommandError
from trireme_tools.deploy import api_fields, exclusions
from trireme_tools.deploy.api_fields import CONFIGURATION, MODEL
from trireme_tools.deploy.exclusions import EXCLUSIONS, RequestedEndpoint, changes_instances

PAGE = Path(__file__).parents[4] / "docs" / "deploy" / "sagemaker.md"


def on(*types: str, **more: Any) -> dict[str, Any]:
    """Return a configuration with a variant on each instance type."""
    variants = [{"VariantName": f"v{n}", "InstanceType": name} for n, name in enumerate(types)]
    return {"ProductionVariants": variants, **more}


def model(**more: Any) -> dict[str, Any]:
    return {"PrimaryContainer": {"Image": "image", **more}}


G5, C5, INF1 = (on(f"ml.{family}.xlarge") for family in ("g5", "c5", "inf1"))
SERVERLESS = {"ProductionVariants": [{"VariantName": "v0", "ServerlessConfig": {"MemorySizeInMB": 2048}}]}
POOL = {"ProductionVariants": [{"VariantName": "v0", "InstancePools": [{"InstanceType": "ml.t3.large"}]}]}
SHADOWED = {"ShadowProductionVariants": [{"VariantName": "shadow"}]}
FILES = {"S3DataSource": {"S3Uri": "s3://ours/ships/"}}
CANARY: dict[str, Any] = {"BlueGreenUpdatePolicy": {}}

REFUSED = {
    "instances to serverless": [RequestedEndpoint(SERVERLESS, served=G5)],
    "serverless multi-model": [RequestedEndpoint(SERVERLESS, model(Mode="MultiModel"))],
    "serverless pipeline": [RequestedEndpoint(SERVERLESS, {"Containers": [{}, {}]})],
    "serverless in a VPC": [
        RequestedEndpoint(SERVERLESS, {"VpcConfig": {"Subnets": ["s"]}}),
        RequestedEndpoint({**SERVERLESS, "VpcConfig": {"Subnets": ["s"]}}),
        RequestedEndpoint(SERVERLESS, model(ImageConfig={"RepositoryAccessMode": "Vpc"})),
    ],
    "serverless without network": [RequestedEndpoint(SERVERLESS, {"EnableNetworkIsolation": True})],
    "serverless data capture": [
        RequestedEndpoint({**SERVERLESS, "DataCaptureConfig": {"EnableCapture": True}})
    ],
    "serverless variants": [RequestedEndpoint({"ProductionVariants": SERVERLESS["ProductionVariants"] * 2})],
    "serverless files": [RequestedEndpoint(SERVERLESS, model(ModelDataSource=FILES))],
    "multi-model files": [RequestedEndpoint(G5, model(Mode="MultiModel", ModelDataSource=FILES))],
    "serverless autoscaling": [RequestedEndpoint(SERVERLESS, scaled=True)],
    "serverless guardrails": [RequestedEndpoint(SERVERLESS, deployment=CANARY, served=SERVERLESS)],
    "shadow": [
        RequestedEndpoint({**SERVERLESS, **SHADOWED}),
        RequestedEndpoint({**G5, **SHADOWED, "AsyncInferenceConfig": {"OutputConfig": {}}}),
        RequestedEndpoint({**G5, **SHADOWED}, model(Mode="MultiModel")),
    ],
    "shadow of several": [RequestedEndpoint({**on("ml.g5.xlarge", "ml.g5.xlarge"), **SHADOWED})],
    "shadow on Inferentia": [RequestedEndpoint({**INF1, **SHADOWED})],
    "guardrails on Inferentia": [RequestedEndpoint(INF1, deployment=CANARY)],
    "rolling update of several variants": [
        RequestedEndpoint(on("ml.g5.xlarge", "ml.g5.xlarge"), deployment={"RollingUpdatePolicy": {}})
    ],
    "autoscaling of burstable instances": [
        RequestedEndpoint(on("ml.t2.medium"), scaled=True),
        RequestedEndpoint(on("ml.t3.large"), scaled=True),
        RequestedEndpoint(POOL, scaled=True),
    ],
    "environment": [RequestedEndpoint(G5, model(Environment={f"V{n:02}": "é" * 512 for n in range(40)}))],
}


@pytest.mark.parametrize("row", EXCLUSIONS, ids=lambda row: row.name)
def test_each_row_refuses_what_it_is_for_and_names_awss_page(row: exclusions.Exclusion) -> None:
    for wanted in REFUSED[row.name]:
        assert [each.name for each in EXCLUSIONS if each.applies(wanted)] == [row.name]
        with pytest.raises(CommandError) as error:
            exclusions.check(wanted)
        assert row.page in str(error.value)
    assert f"https://{row.page}" in PAGE.read_text(), "the page has the same table"


@pytest.mark.parametrize(
    "wanted",
    [
        RequestedEndpoint(SERVERLESS, served=SERVERLESS),
        RequestedEndpoint(G5, served=SERVERLESS),
        RequestedEndpoint(
            {**G5, **SHADOWED}, model(Mode="SingleModel", ModelDataSource=FILES), CANARY, scaled=True
        ),
        RequestedEndpoint(on("ml.t2.medium"), served=C5),
        RequestedEndpoint(on("ml.trn1.2xlarge"), scaled=True),
        RequestedEndpoint(on("ml.inf2.xlarge"), deployment=CANARY),
        RequestedEndpoint(G5, model(Environment={f"V{n:02}": "x" * 1000 for n in range(30)})),
    ],
)
def test_what_sagemaker_takes_passes(wanted: RequestedEndpoint) -> None:
    exclusions.check(wanted)


def test_only_another_type_of_a_variant_that_stays_changes_instances() -> None:
    assert changes_instances(G5, C5) and changes_instances(G5, POOL) and changes_instances(G5, SERVERLESS)
    assert not changes_instances(G5, {**G5, **SHADOWED})
    assert not changes_instances({"ProductionVariants": [{"VariantName": "other"}]}, G5)


LONG_NAME = "N" * 1025


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (MODEL, model(Environment={"MY-VARIABLE": "1"})),
        (MODEL, model(Environment={"2ND": "1"})),
        (MODEL, model(Environment={"": "1"})),
        (MODEL, model(Environment={"WITH SPACE": "1"})),
        (MODEL, model(Environment={LONG_NAME: "1"})),
        (MODEL, model(Environment={"LONG": "x" * 1025})),
        (MODEL, model(Environment={"LONG": "é" * 513})),
        (MODEL, model(Environment={f"V{n}": "1" for n in range(101)})),
        (MODEL, {"Tags": [{"Key": "k" * 129, "Value": ""}]}),
        (MODEL, {"Tags": [{"Key": "team", "Value": "a*b"}]}),
        (MODEL, {"Tags": [{"Key": f"k{n}", "Value": ""} for n in range(51)]}),
        (CONFIGURATION, {"ProductionVariants": [{"VariantName": "v", "InitialInstanceCount": 0}]}),
        (CONFIGURATION, {"ProductionVariants": [{"ServerlessConfig": {"MaxConcurrency": 201}}]}),
        (CONFIGURATION, {"ProductionVariants": [{"VolumeSizeInGB": 513}]}),
        (CONFIGURATION, {"AsyncInferenceConfig": {"OutputConfig": {"S3OutputPath": "s3://b/" + "x" * 1024}}}),
    ],
)
def test_a_value_outside_of_botocores_limits_is_refused(call: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(CommandError) as error:
        api_fields.check_values(call, arguments)
    assert "x" * 100 not in str(error.value) and LONG_NAME not in str(error.value), "a value may be a secret"


def test_values_at_botocores_limits_pass() -> None:
    variables = {"A": "é" * 512, "_b2": "", "N" * 1024: "two\nlines", **{f"V{n}": "1" for n in range(97)}}
    tags = [{"Key": "Größe", "Value": "ö" * 256}, {"Key": "cost center", "Value": "a/b:c_d.e=f+g-h@i"}]
    api_fields.check_values(MODEL, {**model(Environment=variables), "Tags": tags})
    size = {"VolumeSizeInGB": 512, "InitialInstanceCount": 1, "InitialVariantWeight": 0.5}
    api_fields.check_values(CONFIGURATION, {"ProductionVariants": [size]})
