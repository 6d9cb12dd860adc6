"""The three requests of the article's notebook, unchanged, and the key ``img`` in every form of request."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import requests

from tests.integration.reference.article import JSON, payload, request
from tests.support.aws import runtime_client
from tests.support.boxes import RunningBox


def assert_article_result(model: str, result: Any) -> None:
    """Keys, types and order of the article's results."""
    if model == "resnet":
        rows = [re.fullmatch(r"(-?\d+\.\d{6}):(\d+):\2:(.+)", row) for row in result]
        scores = [float(row[1]) for row in rows if row]
        assert len(scores) == len(result) == 3
        assert scores == sorted(scores, reverse=True)
    elif model == "yolov5":
        assert result
        for class_id, confidence, x1, x2, y1, y2, width, height in result:
            assert [class_id, width, height] == [int(class_id), int(width), int(height)]
            assert 0.5 <= confidence <= 1
            assert 0 <= x1 < x2 <= 640
            assert 0 <= y1 < y2 <= 640
    else:
        assert [list(row) for row in result] == [["token", "score"]] * 5
        assert all(re.fullmatch(r"The world has \S+ people\.", row["token"]) for row in result)
        assert all(isinstance(row["score"], float) for row in result)


@pytest.mark.parametrize("model", ["resnet", "yolov5", "bert_base"])
def test_the_notebooks_request_is_answered_through_boto3(demo_box: RunningBox, model: str) -> None:
    response = runtime_client(demo_box.url).invoke_endpoint(
        EndpointName="MyTritonEndpoint", ContentType=JSON, Body=request(model), Accept=JSON
    )
    assert response["ContentType"] == JSON
    answer = json.loads(response["Body"].read())
    assert (list(answer), answer["modelname"]) == (["modelname", "result"], model)
    assert_article_result(model, answer["result"])


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
