"""Right answers through the whole box: nginx, router, clients and Triton with real weights."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import requests
from PIL import Image

from sm.commands.golden import differences
from sm.settings import Settings
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


def test_a_rendered_picture_is_a_png_of_the_pictures_size(box: RunningBox, demo: Path) -> None:
    path = Settings.read({}).cache / "pictures" / "bus.jpg"
    if not path.exists():
        pytest.skip("the street picture is not in the cache: its licence lets us fetch it, not ship it")
    accept = {"Accept": "image/png"}
    response = box.send(path.read_bytes(), "image/jpeg", params={"modelname": "yolov5"}, headers=accept)
    assert response.headers["Content-Type"] == "image/png"
    rendered, original = Image.open(io.BytesIO(response.content)), Image.open(path)
    assert rendered.size == original.size
    assert np.abs(np.asarray(rendered, np.int16) - np.asarray(original, np.int16)).max() > 60


def test_a_list_of_records_gets_a_list_of_results_in_its_order(box: RunningBox, cat: bytes) -> None:
    image = base64.b64encode(cat).decode()
    response = box.invoke("resnet", [image, {"image": "no"}, {"image": image}])
    first, second, third = response.json()["result"]
    assert (response.status_code, first, second["code"]) == (200, third, "bad_input")


def test_a_client_that_fails_is_a_500_without_a_traceback(box: RunningBox) -> None:
    response = box.invoke("fragile", {})
    assert (response.status_code, response.json()["code"]) == (500, "client_failed")
    assert "Traceback" not in response.text


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


def test_the_model_in_the_path_wins_over_query_and_header(box: RunningBox, cat: bytes) -> None:
    headers = {"X-Amzn-SageMaker-Target-Model": "bert_base", "Content-Type": "image/png"}
    url = f"{box.url}/models/resnet/invoke?modelname=yolov5"
    assert requests.post(url, data=cat, headers=headers, timeout=30).json()["modelname"] == "resnet"


def test_outside_multi_model_mode_models_are_not_changed(box: RunningBox) -> None:
    for method, path, status in (
        ("GET", "/models/nobody", 404),
        ("POST", "/models/nobody/invoke", 404),
        ("POST", "/models", 405),
        ("DELETE", "/models/resnet", 405),
    ):
        body = {"model_name": "x", "url": "/opt/ml/models/x/model"}
        assert requests.request(method, f"{box.url}{path}", json=body, timeout=5).status_code == status, path
