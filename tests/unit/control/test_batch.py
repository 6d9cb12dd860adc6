"""Batch transform's settings: its limits, and ``/execution-parameters`` within those of the platform."""

from __future__ import annotations

import pytest

from sm.control.routes import batch_parameters
from sm.settings import Settings


def test_in_batch_mode_a_request_may_take_an_hour_and_have_100_mebibytes() -> None:
    settings = Settings.read({"SAGEMAKER_BATCH": "true"})
    assert (settings.timeout, settings.max_body, settings.max_records) == (3600.0, 100 * 2**20, 10_000_000)
    own = {"MODEL_SERVER_TIMEOUT": "5", "SAGEMAKER_MAX_PAYLOAD_IN_MB": "1"}
    overridden = Settings.read({"SAGEMAKER_BATCH": "true", **own})
    assert (overridden.timeout, overridden.max_body) == (5.0, 2**20)


WORKERS, TRANSFORMS = "SAGEMAKER_MODEL_SERVER_WORKERS", "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS"
PAYLOAD, STRATEGY = "SAGEMAKER_MAX_PAYLOAD_IN_MB", "SAGEMAKER_BATCH_STRATEGY"


@pytest.mark.parametrize(
    ("variables", "transforms", "payload", "strategy"),
    [
        ({WORKERS: "1", "TRIREME_THREADS": "2"}, 2, 6, None),
        ({WORKERS: "16"}, 16, 6, None),
        ({WORKERS: "16", PAYLOAD: "50"}, 2, 50, None),
        ({TRANSFORMS: "3", STRATEGY: "MULTI_RECORD"}, 3, 6, "MULTI_RECORD"),
        ({TRANSFORMS: "3", STRATEGY: "SingleRecord"}, 3, 6, "SINGLE_RECORD"),
    ],
)
def test_execution_parameters_are_those_of_the_settings(
    variables: dict[str, str], transforms: int, payload: int, strategy: str | None
) -> None:
    found = batch_parameters(Settings.read({"SAGEMAKER_BATCH": "true", **variables}))
    names = ("MaxConcurrentTransforms", "MaxPayloadInMB", "BatchStrategy")
    assert [found.get(name) for name in names] == [transforms, payload, strategy]


def test_without_a_limit_the_platform_sends_what_it_likes() -> None:
    settings = Settings.read({"SAGEMAKER_BATCH": "true", PAYLOAD: "0", TRANSFORMS: "0"})
    assert (batch_parameters(settings)["MaxPayloadInMB"], settings.max_body) == (0, 2**31)
