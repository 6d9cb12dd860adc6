"""The answers of a whole box with real weights, and what it says of its models and metrics."""

from __future__ import annotations

import json
import re

import pytest
import requests

from sm.commands.golden import differences
from tests.integration.reference.article import JSON, golden_answer, request
from tests.support.aws import runtime_client
from tests.support.boxes import RunningBox
from tests.support.prometheus import promtool

pytestmark = pytest.mark.core


@pytest.mark.parametrize("name", ["resnet", "yolov5", "bert_base"])
def test_the_articles_request_gets_its_golden_answer_through_boto3(box: RunningBox, name: str) -> None:
    """Word for word as the notebook sends it. The golden answers come from another runtime: TensorFlow.js or PyTorch."""
    response = runtime_client(box.url).invoke_endpoint(
        EndpointName="MyTritonEndpoint", ContentType=JSON, Body=request(name), Accept=JSON
    )
    assert response["ContentType"] == JSON
    answer = json.loads(response["Body"].read())
    assert (list(answer), answer["modelname"]) == (["modelname", "result"], name)
    assert list(differences(answer["result"], golden_answer(name))) == []


def test_promtool_finds_no_problem_in_our_own_metrics(box: RunningBox, cat: bytes) -> None:
    """Triton's series, which begin with nv_, are NVIDIA's to mend."""
    assert box.send(cat, "image/png", params={"modelname": "resnet"}).status_code == 200
    lines = box.scrape().splitlines(keepends=True)
    own = "".join(line for line in lines if not re.match("(# (HELP|TYPE) )?nv_", line))
    completed = promtool("check", "metrics", text=own)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")


def test_a_single_model_is_shown_as_in_the_list(box: RunningBox) -> None:
    rows = requests.get(f"{box.url}/models", timeout=5).json()["models"]
    model = requests.get(f"{box.url}/models/resnet", timeout=5).json()
    assert model in rows
    expected = {"modelName": "resnet", "ready": True, "versions": ["1"], "client": "Resnet"}
    assert expected.items() <= model.items()


def test_outside_multi_model_mode_models_are_not_changed(box: RunningBox) -> None:
    for method, path, status in (
        ("GET", "/models/nobody", 404),
        ("POST", "/models/nobody/invoke", 404),
        ("POST", "/models", 405),
        ("DELETE", "/models/resnet", 405),
    ):
        body = {"model_name": "x", "url": "/opt/ml/models/x/model"}
        assert requests.request(method, f"{box.url}{path}", json=body, timeout=5).status_code == status, path
