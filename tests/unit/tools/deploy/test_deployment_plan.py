"""A plan's arguments for SageMaker: where the models are, and the defaults of a variant."""

from __future__ import annotations

from typing import Any

import pytest

from trireme_tools.deploy import model_data
from trireme_tools.deploy.deployment_plan import Plan, Serverless
from trireme_tools.deploy.model_data import ModelData

ARCHIVE, PREFIX = "s3://ours/ships/model.tar.gz", "s3://ours/ships/"
ROLE = "arn:aws:iam::123456789012:role/serving"


def variant(url: str = ARCHIVE, **fields: Any) -> dict[str, Any]:
    configuration = Plan("ships", "image", ModelData(url), ROLE, **fields).configuration()
    return dict(configuration["ProductionVariants"][0])


def test_a_shadow_with_files_has_no_archive_of_production() -> None:
    container = {"Image": "image", "ModelDataUrl": ARCHIVE, "Environment": {"A": "1"}}
    replaced = model_data.replace(container, PREFIX)
    assert "ModelDataUrl" not in replaced and model_data.url_of(replaced) == PREFIX
    assert replaced["Environment"] == {"A": "1"}


@pytest.mark.parametrize(
    ("fields", "routing"),
    [
        ({}, {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}),
        ({"output": "s3://answers/out"}, None),
        ({"mme": True}, None),
        ({"serverless": Serverless(2048, 5)}, None),
    ],
)
def test_requests_go_to_the_instance_with_the_fewest_where_sagemaker_routes(
    fields: dict[str, Any], routing: Any
) -> None:
    assert variant(**fields).get("RoutingConfig") == routing


@pytest.mark.parametrize(
    ("size", "seconds"), [(0, None), (1, 660), (5 * 10**9, 900), (10**9 + 1, 720), (10**12, 3600)]
)
def test_a_start_may_take_as_long_as_the_models_are_large(size: int, seconds: int | None) -> None:
    assert model_data.start_timeout(size) == seconds
