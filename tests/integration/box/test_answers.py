"""Right answers through the whole box: nginx, router, clients and Triton with real weights."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from PIL import Image

from sm.settings import HERE, Settings
from tests.support.boxes import RunningBox, running_box
from tests.support.prometheus import promtool
from tests.support.runtime_client import runtime_client

pytestmark = pytest.mark.core

SAMPLES = {name: HERE / "clients" / name / "sample" for name in ("resnet", "yolov5", "bert_base")}


@pytest.fixture(scope="module")
def street_picture(demo: Path) -> bytes:
    path = Settings.read({}).cache / "pictures" / "bus.jpg"
    if not path.exists():
        pytest.skip("the street picture is not in the cache: its licence lets us fetch it, not ship it")
    return path.read_bytes()


@pytest.fixture(scope="module")
def runtime(box: RunningBox) -> Any:
    return runtime_client(box.url)


def test_resnet_names_the_cat_in_the_sample_picture(box: RunningBox, cat: bytes) -> None:
    body = box.send(cat, "image/png", params={"modelname": "resnet"}).json()
    assert body["modelname"] == "resnet"
    assert len(body["result"]) == 3
    score, index, repeated_index, label = body["result"][0].split(":")
    assert (index, repeated_index, label.lower()) == ("285", "285", "egyptian cat")
    assert float(score) > 0


def test_yolov5_finds_the_bus_and_the_people_of_a_street(box: RunningBox, street_picture: bytes) -> None:
    image = base64.b64encode(street_picture).decode()
    detections = box.invoke("yolov5", image, parameters={"format": "detections"}).json()["result"]
    labels = [row["label"] for row in detections]
    assert labels.count("bus") == 1
    assert labels.count("person") >= 3
    width, height = Image.open(io.BytesIO(street_picture)).size
    for row in detections:
        corners = row["box"]
        assert 0 <= corners["x1"] < corners["x2"] <= width
        assert 0 <= corners["y1"] < corners["y2"] <= height


def test_a_rendered_picture_is_a_png_of_the_pictures_size(box: RunningBox, street_picture: bytes) -> None:
    response = box.send(
        street_picture, "image/jpeg", params={"modelname": "yolov5"}, headers={"Accept": "image/png"}
    )
    assert response.headers["Content-Type"] == "image/png"
    rendered = Image.open(io.BytesIO(response.content))
    original = Image.open(io.BytesIO(street_picture))
    assert rendered.size == original.size
    assert np.abs(np.asarray(rendered, np.int16) - np.asarray(original, np.int16)).max() > 60


def test_bert_base_fills_the_mask_with_sensible_words(box: RunningBox) -> None:
    result = box.invoke("bert_base", {"text": "The world has [MASK] people."}).json()["result"]
    assert len(result) == 5
    assert all(
        row["token"].startswith("The world has ") and row["token"].endswith(" people.") for row in result
    )
    words = {row["token"].split()[3] for row in result}
    assert words & {"many", "no", "some", "few", "two", "more", "all", "million", "the", "people", "three"}
    scores = [row["score"] for row in result]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_each_sample_gets_its_golden_answer(box: RunningBox, name: str) -> None:
    """The golden answers come from another runtime: TensorFlow.js or PyTorch."""
    payload = json.loads((SAMPLES[name] / "payload.json").read_text())
    golden = json.loads((SAMPLES[name] / "golden.json").read_text())
    assert_close(box.invoke(name, payload).json()["result"], golden)


def assert_close(actual: Any, golden: Any) -> None:
    """Equal in shape and words; numbers within 1 pixel, or 0.01 for scores."""
    assert type(actual) is type(golden) or {type(actual), type(golden)} <= {int, float}, (actual, golden)
    if isinstance(golden, list):
        assert len(actual) == len(golden)
        for actual_item, golden_item in zip(actual, golden, strict=True):
            assert_close(actual_item, golden_item)
    elif isinstance(golden, dict):
        assert actual.keys() == golden.keys()
        for key, value in golden.items():
            assert_close(actual[key], value)
    elif isinstance(golden, int | float):
        assert actual == pytest.approx(golden, abs=1.0 if abs(golden) > 1 else 0.01)
    elif ":" in golden:
        score, *rest = golden.split(":")
        assert actual.split(":")[1:] == rest
        assert float(actual.split(":")[0]) == pytest.approx(float(score), abs=0.01)
    else:
        assert actual == golden


def test_a_list_of_records_gets_a_list_of_results_in_its_order(box: RunningBox, cat: bytes) -> None:
    image = base64.b64encode(cat).decode()
    response = box.invoke("resnet", [image, {"image": "no"}, {"image": image}])
    assert response.status_code == 200
    first, second, third = response.json()["result"]
    assert first == third
    assert second["code"] == "bad_input"


def test_a_text_body_is_served(box: RunningBox) -> None:
    response = box.send(
        "Grüße from the [MASK].".encode(), "text/plain; charset=utf-8", params={"modelname": "bert_base"}
    )
    assert response.json()["result"][0]["token"].startswith("Grüße from the ")


def test_models_lists_what_is_served(box: RunningBox) -> None:
    rows = {row["modelName"]: row for row in requests.get(f"{box.url}/models", timeout=5).json()["models"]}
    assert {"resnet", "yolov5", "bert_base", "slow", "fragile"} <= rows.keys()
    assert rows["resnet"]["ready"] is True
    assert rows["resnet"]["versions"] == ["1"]
    assert rows["resnet"]["client"] == "Resnet"


def test_metrics_have_the_routers_and_tritons_series(box: RunningBox, cat: bytes) -> None:
    count_before = box.metric("trireme_invocations_total", model="resnet", status="200")
    assert box.send(cat, "image/png", params={"modelname": "resnet"}).status_code == 200
    assert box.metric("trireme_invocations_total", model="resnet", status="200") == count_before + 1
    assert box.metric("nv_inference_request_success", model="resnet") >= 1
    assert box.metric("trireme_tensor_requests_total", transport="shared_memory") >= 1


def test_promtool_finds_no_problem_in_our_own_metrics(box: RunningBox, cat: bytes) -> None:
    """Triton's series, which begin with nv_, are NVIDIA's to mend."""
    assert box.send(cat, "image/png", params={"modelname": "resnet"}).status_code == 200
    lines = box.scrape().splitlines(keepends=True)
    own_series = "".join(
        line for line in lines if not line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith("nv_")
    )
    assert 'trireme_invocation_duration_seconds_bucket{le="+Inf",model="resnet"' in own_series
    completed = promtool("check", "metrics", text=own_series)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")


def test_a_box_without_nginx_gives_the_same_answers(
    demo: Path, tmp_path: Path, cat: bytes, box: RunningBox
) -> None:
    with running_box(tmp_path, demo, TRIREME_NGINX="off") as box_without_nginx:
        options: dict[str, Any] = {"params": {"modelname": "resnet"}}
        assert (
            box_without_nginx.send(cat, "image/png", **options).json()
            == box.send(cat, "image/png", **options).json()
        )
        assert box_without_nginx.invoke("nobody", {}).status_code == 404
        assert "trireme_invocations_total" in requests.get(f"{box_without_nginx.url}/metrics", timeout=5).text
        # The worker on the port forwards the request to the control plane, which keeps the history.
        assert requests.get(f"{box_without_nginx.url}/dashboard/data", timeout=5).json()["box"]["processes"]
        assert "nginx" in box_without_nginx.log.read_text()
