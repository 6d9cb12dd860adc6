"""Batch transform's settings: its limits, and ``/execution-parameters`` within those of the platform."""

from __future__ import annotations

import pytest

from sm.control.routes import batch_parameters
from sm.settings import Settings


def test_in_batch_mode_a_request_may_take_an_hour_and_have_100_mebibytes() -> None:
    settings = Settings.read({"SAGEMAKER_BATCH": "true"})
    assert (settings.timeout, settings.max_body) == (3600.0, 100 * 2**20)
    assert settings.max_records == 10_000_000
    overridden = Settings.read(
        {"SAGEMAKER_BATCH": "true", "MODEL_SERVER_TIMEOUT": "5", "SAGEMAKER_MAX_PAYLOAD_IN_MB": "1"}
    )
    assert (overridden.timeout, overridden.max_body) == (5.0, 2**20)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {"SAGEMAKER_MODEL_SERVER_WORKERS": "1", "TRIREME_THREADS": "2"},
            {"MaxConcurrentTransforms": 2, "MaxPayloadInMB": 6},
        ),
        ({"SAGEMAKER_MODEL_SERVER_WORKERS": "16"}, {"MaxConcurrentTransforms": 16}),
        (
            {"SAGEMAKER_MODEL_SERVER_WORKERS": "16", "SAGEMAKER_MAX_PAYLOAD_IN_MB": "50"},
            {"MaxConcurrentTransforms": 2, "MaxPayloadInMB": 50},
        ),
        (
            {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "0", "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "0"},
            {"MaxPayloadInMB": 0},
        ),
        (
            {"SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "3", "SAGEMAKER_BATCH_STRATEGY": "MULTI_RECORD"},
            {"MaxConcurrentTransforms": 3, "BatchStrategy": "MULTI_RECORD"},
        ),
        ({"SAGEMAKER_BATCH_STRATEGY": "SingleRecord"}, {"BatchStrategy": "SINGLE_RECORD"}),
    ],
)
def test_execution_parameters_are_those_of_the_settings(
    variables: dict[str, str], expected: dict[str, object]
) -> None:
    settings = Settings.read({"SAGEMAKER_BATCH": "true", **variables})
    parameters = batch_parameters(settings)
    assert {name: parameters.get(name) for name in expected} == expected
    # Without a limit the platform sends what it likes.
    assert parameters["MaxPayloadInMB"] or settings.max_body == 2**31
