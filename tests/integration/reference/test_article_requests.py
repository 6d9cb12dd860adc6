"""The three requests of the article's notebook, unchanged, and the key ``img`` in every form of request."""

from __future__ import annotations

import json

import pytest
import requests

from sm.commands.golden import differences
from tests.integration.reference.article import JSON, golden_answer, payload, request
from tests.support.aws import runtime_client
from tests.support.boxes import RunningBox


@pytest.mark.parametrize("model", ["resnet", "yolov5", "bert_base"])
def test_the_notebooks_request_is_answered_through_boto3(demo_box: RunningBox, model: str) -> None:
    response = runtime_client(demo_box.url).invoke_endpoint(
        EndpointName="MyTritonEndpoint", ContentType=JSON, Body=request(model), Accept=JSON
    )
    assert response["ContentType"] == JSON
    answer = json.loads(response["Body"].read())
    assert (list(answer), answer["modelname"]) == (["modelname", "result"], model)
    assert list(differences(answer["result"], golden_answer(model))) == []


def test_img_works_in_lists_and_in_json_lines(demo_box: RunningBox) -> None:
    image = payload("resnet")
    result = demo_box.invoke("resnet", image).json()["result"]
    assert demo_box.invoke("resnet", [image, {"image": image["img"]}]).json()["result"] == [result, result]
    body = f"{request('resnet')}\n{request('bert_base')}\n".encode()
    first, second = map(json.loads, demo_box.send(body, "application/jsonlines").text.splitlines())
    assert (first["result"], second["modelname"]) == (result, "bert_base")


def test_the_openapi_document_names_both_keys(demo_box: RunningBox) -> None:
    schemas = requests.get(f"{demo_box.url}/openapi.json", timeout=10).json()["components"]["schemas"]
    for model in ("resnet", "yolov5"):
        assert list(schemas[model]["properties"]) == ["image", "img"]
        assert schemas[model]["allOf"] == [{"oneOf": [{"required": ["image"]}, {"required": ["img"]}]}]
