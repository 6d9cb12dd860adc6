"""v2 JSON as the official notebooks send it: with boto3, and not always as ``application/json``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.boxes import RunningBox
from tests.support.reference.official import MultiModel, runtime

PAYLOAD = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
#: Triton's keys in Triton's order, and no other.
KEYS = ["model_name", "model_version", "outputs"]
TYPES = [
    "application/octet-stream",
    "application/x-www-form-urlencoded",
    "application/vnd.of.nobody+json; charset=utf-8",
    "text/plain",
    "image/jpeg",
]


def invoke(box: RunningBox, body: str, content_type: str, **options: str) -> tuple[Any, str]:
    answer = runtime(box).invoke_endpoint(
        EndpointName="triton", ContentType=content_type, Body=body, **options
    )
    return json.loads(answer["Body"].read().decode("utf8")), answer["ContentType"]


@pytest.mark.parametrize("content_type", TYPES)
def test_a_notebook_s_v2_json_gets_triton_s_answer_under_any_content_type(
    single_box: RunningBox, content_type: str
) -> None:
    told, answered_type = invoke(single_box, json.dumps(PAYLOAD), content_type)
    assert list(told) == KEYS
    assert told["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]
    assert answered_type == "application/json"


@pytest.mark.parametrize("content_type", ["application/octet-stream", "application/json"])
def test_the_target_model_names_the_model_of_v2_json(single_box: RunningBox, content_type: str) -> None:
    words = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}
    told, _ = invoke(single_box, json.dumps(words), content_type, TargetModel="words")
    assert (list(told), told["model_name"]) == (KEYS, "words")
    assert told["outputs"][0]["data"] == ["A"]


@pytest.mark.parametrize("content_type", ["application/octet-stream", "application/json"])
def test_the_target_model_names_an_archive(multi_model: MultiModel, content_type: str) -> None:
    multi_model.load_fresh("resnet", "resnet_pt_v0.tar.gz")
    told, _ = invoke(multi_model.box, json.dumps(PAYLOAD), content_type, TargetModel="resnet_pt_v0.tar.gz")
    assert list(told) == KEYS
    assert told["outputs"][0]["data"] == [2.0, 4.0]


def test_the_platform_s_invoke_takes_octet_stream(multi_model: MultiModel) -> None:
    multi_model.load_fresh("resnet", "resnet_pt_v0.tar.gz")
    headers = {"Content-Type": "application/octet-stream"}
    response = multi_model.ask("POST", "/models/resnet/invoke", data=json.dumps(PAYLOAD), headers=headers)
    assert response.status_code == 200, response.text
    assert list(response.json()) == KEYS


def test_a_client_that_claims_the_content_type_keeps_it(single_box: RunningBox) -> None:
    body = json.dumps(PAYLOAD)
    told, _ = invoke(single_box, body, "application/octet-stream", TargetModel="claims")
    assert told == {"modelname": "claims", "result": {"bytes": len(body)}}


@pytest.mark.parametrize("body", ["{", "[1, 2]", "inputs", '{"input": []}', "\x00\x01"])
def test_what_is_no_v2_json_is_still_a_415(single_box: RunningBox, body: str) -> None:
    with pytest.raises(ClientError) as excinfo:
        invoke(single_box, body, "application/octet-stream")
    assert excinfo.value.response["OriginalStatusCode"] == 415


def test_v2_json_that_triton_refuses_is_triton_s_400(single_box: RunningBox) -> None:
    wrong = {"inputs": [{**PAYLOAD["inputs"][0], "name": "nobody"}]}
    with pytest.raises(ClientError, match="nobody") as excinfo:
        invoke(single_box, json.dumps(wrong), "application/octet-stream")
    assert excinfo.value.response["OriginalStatusCode"] == 400
