"""v2 JSON as the official notebooks send it: with boto3, under several content types."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.aws import runtime_client
from tests.support.boxes import RunningBox
from tests.support.multi_model_endpoint import REQUEST_BODY, MultiModelEndpoint

OCTETS, JSON = "application/octet-stream", "application/json"


def invoke(box: RunningBox, body: object, content_type: str, **options: str) -> Any:
    response = runtime_client(box.url).invoke_endpoint(
        EndpointName="triton", ContentType=content_type, Body=json.dumps(body), **options
    )
    assert response["ContentType"] == JSON
    return json.loads(response["Body"].read().decode("utf8"))


@pytest.mark.parametrize(
    "content_type",
    [
        OCTETS,
        "application/x-www-form-urlencoded",
        "application/vnd.unknown+json; charset=utf-8",
        "text/plain",
        "image/jpeg",
    ],
)
def test_v2_json_gets_tritons_response_under_any_content_type(
    single_box: RunningBox, content_type: str
) -> None:
    answer = invoke(single_box, REQUEST_BODY, content_type)
    assert list(answer) == ["model_name", "model_version", "outputs"]  # Triton's keys, in Triton's order
    assert answer["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]


@pytest.mark.parametrize("content_type", [OCTETS, JSON])
def test_the_target_model_names_the_model_or_the_archive_of_v2_json(
    single_box: RunningBox, multi_model: MultiModelEndpoint, content_type: str
) -> None:
    request = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}
    answer = invoke(single_box, request, content_type, TargetModel="words")
    assert (answer["model_name"], answer["outputs"][0]["data"]) == ("words", ["A"])
    multi_model.ensure_loaded("resnet", "resnet_pt_v0.tar.gz")
    answer = invoke(multi_model.box, REQUEST_BODY, content_type, TargetModel="resnet_pt_v0.tar.gz")
    assert answer["outputs"][0]["data"] == [2.0, 4.0]


def test_v2_json_of_a_content_type_that_a_client_accepts_goes_to_the_client(single_box: RunningBox) -> None:
    answer = invoke(single_box, REQUEST_BODY, OCTETS, TargetModel="claims")
    assert answer == {"modelname": "claims", "result": {"bytes": len(json.dumps(REQUEST_BODY))}}
