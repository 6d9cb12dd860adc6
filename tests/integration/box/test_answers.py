"""Right answers, through the whole box: nginx, router, client, Triton, real weights."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import boto3
import botocore.config
import botocore.exceptions
import numpy as np
import pytest
import requests
from PIL import Image

from sm.settings import HERE, Settings
from tests.support.boxes import RunningBox, running_box
from tests.support.prometheus import promtool

SAMPLES = {name: HERE / "clients" / name / "sample" for name in ("resnet", "yolov5", "bert_base")}


@pytest.fixture(scope="module")
def street(demo: Path) -> bytes:
    path = Settings.read({}).cache / "pictures" / "bus.jpg"
    if not path.exists():
        pytest.skip("the street picture is not in the cache: its licence lets us fetch it, not ship it")
    return path.read_bytes()


@pytest.fixture(scope="module")
def runtime(box: RunningBox) -> Any:
    return boto3.client(
        "sagemaker-runtime",
        endpoint_url=box.url,
        region_name="eu-west-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=botocore.config.Config(retries={"max_attempts": 1}),
    )


def test_ping_is_200_with_an_empty_body(box: RunningBox) -> None:
    answer = requests.get(f"{box.url}/ping", timeout=5)
    assert (answer.status_code, answer.content) == (200, b"")
    assert requests.post(f"{box.url}/ping", timeout=5).status_code == 200


def test_a_cat_is_an_egyptian_cat(box: RunningBox, cat: bytes) -> None:
    answer = box.send(cat, "image/png", params={"modelname": "resnet"}).json()
    assert answer["modelname"] == "resnet"
    assert len(answer["result"]) == 3
    score, index, again, label = answer["result"][0].split(":")
    assert (index, again, label.lower()) == ("285", "285", "egyptian cat")
    assert float(score) > 0


def test_a_street_has_its_bus_and_its_people(box: RunningBox, street: bytes) -> None:
    body = base64.b64encode(street).decode()
    found = box.invoke("yolov5", body, parameters={"format": "detections"}).json()["result"]
    labels = [row["label"] for row in found]
    assert labels.count("bus") == 1
    assert labels.count("person") >= 3
    width, height = Image.open(io.BytesIO(street)).size
    for row in found:
        box_ = row["box"]
        assert 0 <= box_["x1"] < box_["x2"] <= width
        assert 0 <= box_["y1"] < box_["y2"] <= height


def test_the_rows_of_yolov5_have_the_reference_systems_order(box: RunningBox, street: bytes) -> None:
    rows = box.invoke("yolov5", base64.b64encode(street).decode()).json()["result"]
    for class_id, confidence, x1, x2, y1, y2, width, height in rows:
        assert class_id == int(class_id)
        assert 0.5 <= confidence <= 1
        assert 0 <= x1 < x2 <= 640
        assert 0 <= y1 < y2 <= 640
        assert width > 0 < height


def test_a_picture_with_its_boxes_is_a_png_of_its_own_size(box: RunningBox, street: bytes) -> None:
    answer = box.send(street, "image/jpeg", params={"modelname": "yolov5"}, headers={"Accept": "image/png"})
    assert answer.headers["Content-Type"] == "image/png"
    drawn = Image.open(io.BytesIO(answer.content))
    plain = Image.open(io.BytesIO(street))
    assert drawn.size == plain.size
    assert np.abs(np.asarray(drawn, np.int16) - np.asarray(plain, np.int16)).max() > 60


def test_the_sentence_gets_sensible_words(box: RunningBox) -> None:
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
def test_the_sample_gets_its_golden_answer(box: RunningBox, name: str) -> None:
    """The golden answers come from another runtime: TensorFlow.js or PyTorch."""
    payload = json.loads((SAMPLES[name] / "payload.json").read_text())
    golden = json.loads((SAMPLES[name] / "golden.json").read_text())
    assert_close(box.invoke(name, payload).json()["result"], golden)


def assert_close(found: Any, golden: Any) -> None:
    """Equal in shape and words; numbers within 1 pixel, or 0.01 for scores."""
    assert type(found) is type(golden) or {type(found), type(golden)} <= {int, float}, (found, golden)
    if isinstance(golden, list):
        assert len(found) == len(golden)
        for one, other in zip(found, golden, strict=True):
            assert_close(one, other)
    elif isinstance(golden, dict):
        assert found.keys() == golden.keys()
        for key, value in golden.items():
            assert_close(found[key], value)
    elif isinstance(golden, int | float):
        assert found == pytest.approx(golden, abs=1.0 if abs(golden) > 1 else 0.01)
    elif ":" in golden:
        score, *rest = golden.split(":")
        assert found.split(":")[1:] == rest
        assert float(found.split(":")[0]) == pytest.approx(float(score), abs=0.01)
    else:
        assert found == golden


def test_a_list_is_answered_by_a_list_in_its_order(box: RunningBox, cat: bytes) -> None:
    image = base64.b64encode(cat).decode()
    answer = box.invoke("resnet", [image, {"image": "no"}, {"image": image}])
    assert answer.status_code == 200
    first, second, third = answer.json()["result"]
    assert first == third
    assert second["code"] == "bad_input"


def test_a_list_in_which_all_fail_fails(box: RunningBox) -> None:
    assert box.invoke("resnet", [{"image": "no"}, {"image": "no"}]).status_code == 400


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"X-Amzn-SageMaker-Custom-Attributes": "modelname=resnet;version=1"}},
        {"headers": {"X-Amzn-SageMaker-Target-Model": "resnet"}},
        {"params": {"modelname": "resnet", "version": "1"}},
    ],
)
def test_a_raw_picture_finds_its_model_by_attributes_target_model_or_query(
    box: RunningBox, cat: bytes, options: dict[str, Any]
) -> None:
    assert box.send(cat, "image/png", **options).json()["modelname"] == "resnet"


def test_parameters_reach_the_client_from_body_query_and_attributes(box: RunningBox, cat: bytes) -> None:
    image = base64.b64encode(cat).decode()
    answers = [
        box.invoke("resnet", image, parameters={"top": 5}),
        box.send(cat, "image/png", params={"modelname": "resnet", "top": "5"}),
        box.send(cat, "image/png", headers={"X-Amzn-SageMaker-Custom-Attributes": "modelname=resnet;top=5"}),
    ]
    assert [len(answer.json()["result"]) for answer in answers] == [5, 5, 5]


def test_a_text_body_is_served(box: RunningBox) -> None:
    answer = box.send(
        "Grüße from the [MASK].".encode(), "text/plain; charset=utf-8", params={"modelname": "bert_base"}
    )
    assert answer.json()["result"][0]["token"].startswith("Grüße from the ")


def test_boto3_gets_its_answer(runtime: Any, cat: bytes) -> None:
    answer = runtime.invoke_endpoint(
        EndpointName="any", ContentType="image/png", Body=cat, CustomAttributes="modelname=resnet"
    )
    assert "egyptian cat" in answer["Body"].read().decode().lower()
    assert answer["InvokedProductionVariant"] == "AllTraffic"


def test_boto3_gets_its_typed_model_error(runtime: Any) -> None:
    with pytest.raises(runtime.exceptions.ModelError) as raised:
        runtime.invoke_endpoint(EndpointName="any", ContentType="application/json", Body=b"{")
    response = raised.value.response
    assert response["OriginalStatusCode"] == 400
    assert "not JSON" in json.loads(response["OriginalMessage"])["error"]


def test_models_lists_what_is_served(box: RunningBox) -> None:
    rows = {row["modelName"]: row for row in requests.get(f"{box.url}/models", timeout=5).json()["models"]}
    assert {"resnet", "yolov5", "bert_base", "slow", "fragile"} <= rows.keys()
    assert rows["resnet"]["ready"] is True
    assert rows["resnet"]["versions"] == ["1"]
    assert rows["resnet"]["client"] == "Resnet"


def test_metrics_are_the_routers_and_tritons_together(box: RunningBox, cat: bytes) -> None:
    before = box.metric("trireme_invocations_total", model="resnet", status="200")
    assert box.send(cat, "image/png", params={"modelname": "resnet"}).status_code == 200
    assert box.metric("trireme_invocations_total", model="resnet", status="200") == before + 1
    assert box.metric("nv_inference_request_success", model="resnet") >= 1
    assert box.metric("trireme_tensor_requests_total", transport="shared_memory") >= 1


def test_promtool_finds_nothing_to_say_of_our_own_series(box: RunningBox, cat: bytes) -> None:
    """Triton's, which begin with nv_, are NVIDIA's."""
    assert box.send(cat, "image/png", params={"modelname": "resnet"}).status_code == 200
    lines = requests.get(f"{box.url}/metrics", timeout=5).text.splitlines(keepends=True)
    ours = "".join(
        line for line in lines if not line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith("nv_")
    )
    assert 'trireme_invocation_duration_seconds_bucket{le="+Inf",model="resnet"' in ours
    completed = promtool("check", "metrics", text=ours)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")


def test_the_request_id_of_the_caller_is_in_the_error(box: RunningBox) -> None:
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1"
    for header, value in (("X-Amzn-SageMaker-Inference-Id", "mine-1"), ("X-Amzn-Trace-Id", trace)):
        assert box.send(b"", headers={header: value}).json()["request_id"] == value
    assert len(box.send(b"").json()["request_id"]) >= 16


def test_an_answer_without_nginx_in_front_is_the_same(
    demo: Path, tmp_path: Path, cat: bytes, box: RunningBox
) -> None:
    with running_box(tmp_path, demo, TRIREME_NGINX="off") as alone:
        options: dict[str, Any] = {"params": {"modelname": "resnet"}}
        assert alone.send(cat, "image/png", **options).json() == box.send(cat, "image/png", **options).json()
        assert alone.invoke("nobody", {}).status_code == 404
        assert "trireme_invocations_total" in requests.get(f"{alone.url}/metrics", timeout=5).text
        # The control plane keeps the record; the worker at the port asks it.
        assert requests.get(f"{alone.url}/dashboard/data", timeout=5).json()["box"]["processes"]
        assert "nginx" in alone.log.read_text()
