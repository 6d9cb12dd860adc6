"""The three requests of the article's notebook, unchanged, and the key ``img`` in every form of request."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import requests

from tests.integration.reference.article import JSON, picture, request
from tests.support.aws import runtime_client
from tests.support.boxes import RunningBox

pytestmark = pytest.mark.core

MODELS = ("resnet", "yolov5", "bert_base")


def invoke(box: RunningBox, model: str) -> Any:
    """Call the endpoint as the notebook does, with its content types and body."""
    response = runtime_client(box.url).invoke_endpoint(
        EndpointName="MyTritonEndpoint", ContentType=JSON, Body=request(model), Accept=JSON
    )
    assert response["ContentType"] == JSON
    return json.loads(response["Body"].read())


def assert_article_result(model: str, result: Any) -> None:
    """Keys, types and order of the article's results."""
    if model == "resnet":
        assert len(result) == 3
        rows = [re.fullmatch(r"(-?\d+\.\d{6}):(\d+):(\d+):(.+)", row) for row in result]
        assert all(row and row[2] == row[3] for row in rows)
        scores = [float(row[1]) for row in rows if row]
        assert scores == sorted(scores, reverse=True)
    elif model == "yolov5":
        assert result
        for class_id, confidence, x1, x2, y1, y2, width, height in result:
            assert class_id == int(class_id)
            assert 0.5 <= confidence <= 1
            assert 0 <= x1 < x2 <= 640
            assert 0 <= y1 < y2 <= 640
            assert (width, height) == (int(width), int(height))
    else:
        assert [list(row) for row in result] == [["token", "score"]] * 5
        assert all(re.fullmatch(r"The world has \S+ people\.", row["token"]) for row in result)
        assert all(isinstance(row["score"], float) for row in result)


@pytest.mark.parametrize("model", MODELS)
def test_the_notebooks_request_is_answered_through_boto3(demo_box: RunningBox, model: str) -> None:
    answer = invoke(demo_box, model)
    assert list(answer) == ["modelname", "result"]
    assert answer["modelname"] == model
    assert_article_result(model, answer["result"])


def test_img_works_in_lists_and_in_json_lines(demo_box: RunningBox) -> None:
    image = picture("resnet")
    result = demo_box.invoke("resnet", {"img": image}).json()["result"]
    records = demo_box.invoke("resnet", [{"img": image}, {"image": image}]).json()["result"]
    assert records == [result, result]
    lines = demo_box.send(
        f"{request('resnet')}\n{request('bert_base')}\n".encode(), "application/jsonlines"
    ).text.splitlines()
    first, second = map(json.loads, lines)
    assert first["result"] == result
    assert second["modelname"] == "bert_base"


def test_the_openapi_document_names_both_keys(demo_box: RunningBox) -> None:
    schemas = requests.get(f"{demo_box.url}/openapi.json", timeout=10).json()["components"]["schemas"]
    for model in ("resnet", "yolov5"):
        schema = schemas[model]
        assert list(schema["properties"]) == ["image", "img"]
        assert schema["properties"]["img"]["contentEncoding"] == "base64"
        assert schema["allOf"] == [{"oneOf": [{"required": ["image"]}, {"required": ["img"]}]}]
        assert "required" not in schema
