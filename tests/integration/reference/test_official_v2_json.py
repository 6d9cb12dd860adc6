"""v2 JSON as the official notebooks send it: with boto3, under several content types."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.aws import runtime_client
from tests.support.boxes import RunningBox
from tests.support.multi_model_endpoint import REQUEST_BODY as ECHO_REQUEST
from tests.support.multi_model_endpoint import MultiModelEndpoint

#: Triton's keys, in Triton's order.
RESPONSE_KEYS = ["model_name", "model_version", "outputs"]
CONTENT_TYPES = [
    "application/octet-stream",
    "application/x-www-form-urlencoded",
    "application/vnd.unknown+json; charset=utf-8",
    "text/plain",
    "image/jpeg",
]


def invoke(box: RunningBox, body: str, content_type: str, **options: str) -> tuple[Any, str]:
    response = runtime_client(box.url).invoke_endpoint(
        EndpointName="triton", ContentType=content_type, Body=body, **options
    )
    return json.loads(response["Body"].read().decode("utf8")), response["ContentType"]


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
def test_v2_json_gets_tritons_response_under_any_content_type(
    single_box: RunningBox, content_type: str
) -> None:
    answer, response_type = invoke(single_box, json.dumps(ECHO_REQUEST), content_type)
    assert list(answer) == RESPONSE_KEYS
    assert answer["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]
    assert response_type == "application/json"


@pytest.mark.parametrize("content_type", ["application/octet-stream", "application/json"])
def test_the_target_model_names_the_model_of_v2_json(single_box: RunningBox, content_type: str) -> None:
    request = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}
    answer, _ = invoke(single_box, json.dumps(request), content_type, TargetModel="words")
    assert (list(answer), answer["model_name"]) == (RESPONSE_KEYS, "words")
    assert answer["outputs"][0]["data"] == ["A"]


@pytest.mark.parametrize("content_type", ["application/octet-stream", "application/json"])
def test_the_target_model_names_an_archive(multi_model: MultiModelEndpoint, content_type: str) -> None:
    multi_model.ensure_loaded("resnet", "resnet_pt_v0.tar.gz")
    answer, _ = invoke(
        multi_model.box, json.dumps(ECHO_REQUEST), content_type, TargetModel="resnet_pt_v0.tar.gz"
    )
    assert list(answer) == RESPONSE_KEYS
    assert answer["outputs"][0]["data"] == [2.0, 4.0]


def test_v2_json_of_a_content_type_that_a_client_accepts_goes_to_the_client(single_box: RunningBox) -> None:
    body = json.dumps(ECHO_REQUEST)
    answer, _ = invoke(single_box, body, "application/octet-stream", TargetModel="claims")
    assert answer == {"modelname": "claims", "result": {"bytes": len(body)}}
