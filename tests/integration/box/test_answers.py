"""Right answers through the whole box: nginx, router, clients and Triton with real weights."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
import requests
from PIL import Image

from sm.commands.golden import differences
from sm.settings import HERE, Settings
from tests.support.boxes import RunningBox
from tests.support.hostile_pictures import encode
from tests.support.prometheus import promtool

pytestmark = pytest.mark.core


@pytest.mark.parametrize("name", ["resnet", "yolov5", "bert_base"])
def test_each_sample_gets_its_golden_answer(box: RunningBox, name: str) -> None:
    """The golden answers come from another runtime: TensorFlow.js or PyTorch."""
    payload, golden = (
        json.loads((HERE / "clients" / name / "sample" / f"{part}.json").read_text())
        for part in ("payload", "golden")
    )
    assert list(differences(box.invoke(name, payload).json()["result"], golden)) == []


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


def picture(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 255, (height, width, 3), np.uint8))


PICTURES = {
    "1x1": encode(picture(1, 1), "PNG"),
    "1x4000": encode(picture(1, 4000), "PNG"),
    "4000x1": encode(picture(4000, 1), "PNG"),
    "grey": encode(picture(64, 48).convert("L"), "PNG"),
    "16-bit": encode(Image.fromarray(np.full((48, 64), 40_000, np.uint16)), "PNG"),
    "cmyk": encode(picture(64, 48).convert("CMYK"), "JPEG"),
    "alpha": encode(picture(64, 48).convert("RGBA"), "PNG"),
    "webp": encode(picture(64, 48), "WEBP"),
}


@pytest.mark.parametrize("model", ["resnet", "yolov5"])
def test_pictures_of_every_format_and_shape_are_served(box: RunningBox, model: str) -> None:
    results = box.invoke(model, [base64.b64encode(each).decode() for each in PICTURES.values()]).json()[
        "result"
    ]
    assert [
        kind for kind, result in zip(PICTURES, results, strict=True) if not isinstance(result, list)
    ] == []


def test_a_picture_turned_by_exif_gets_the_result_of_the_upright_one(box: RunningBox, cat: bytes) -> None:
    upright = Image.open(io.BytesIO(cat)).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 270 degrees to see it upright
    turned = encode(upright.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)
    first, second = (base64.b64encode(each).decode() for each in (encode(upright, "PNG"), turned))
    assert box.invoke("resnet", first).json() == box.invoke("resnet", second).json()


def test_a_client_that_fails_is_a_500_without_a_traceback(box: RunningBox) -> None:
    response = box.invoke("fragile", {})
    assert (response.status_code, response.json()["code"]) == (500, "client_failed")
    assert "Traceback" not in response.text


def test_promtool_finds_no_problem_in_our_own_metrics(box: RunningBox, cat: bytes) -> None:
    """Triton's series, which begin with nv_, are NVIDIA's to mend."""
    assert box.send(cat, "image/png", params={"modelname": "resnet"}).status_code == 200
    lines = box.scrape().splitlines(keepends=True)
    own = [
        line for line in lines if not line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith("nv_")
    ]
    completed = promtool("check", "metrics", text="".join(own))
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")


def test_a_single_model_is_shown_as_in_the_list(box: RunningBox) -> None:
    rows = requests.get(f"{box.url}/models", timeout=5).json()["models"]
    model = requests.get(f"{box.url}/models/resnet", timeout=5).json()
    assert model in rows
    expected = {"modelName": "resnet", "ready": True, "versions": ["1"], "client": "Resnet"}
    assert expected.items() <= model.items()


def test_the_model_in_the_path_wins_over_query_and_header(box: RunningBox, cat: bytes) -> None:
    headers = {"Content-Type": "image/png", "X-Amzn-SageMaker-Target-Model": "bert_base"}
    url = f"{box.url}/models/resnet/invoke?modelname=yolov5"
    assert requests.post(url, data=cat, headers=headers, timeout=30).json()["modelname"] == "resnet"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/models/nobody", 404),
        ("POST", "/models/nobody/invoke", 404),
        ("POST", "/models", 405),
        ("DELETE", "/models/resnet", 405),
    ],
)
def test_outside_multi_model_mode_models_are_not_changed(
    box: RunningBox, method: str, path: str, status: int
) -> None:
    body = {"model_name": "x", "url": "/opt/ml/models/x/model"}
    assert requests.request(method, f"{box.url}{path}", json=body, timeout=5).status_code == status
