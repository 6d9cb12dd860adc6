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
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.prometheus import promtool

pytestmark = pytest.mark.core

SAMPLES = {name: HERE / "clients" / name / "sample" for name in ("resnet", "yolov5", "bert_base")}


@pytest.fixture(scope="module")
def street_picture(demo: Path) -> bytes:
    path = Settings.read({}).cache / "pictures" / "bus.jpg"
    if not path.exists():
        pytest.skip("the street picture is not in the cache: its licence lets us fetch it, not ship it")
    return path.read_bytes()


def test_a_rendered_picture_is_a_png_of_the_pictures_size(box: RunningBox, street_picture: bytes) -> None:
    response = box.send(
        street_picture, "image/jpeg", params={"modelname": "yolov5"}, headers={"Accept": "image/png"}
    )
    assert response.headers["Content-Type"] == "image/png"
    rendered = Image.open(io.BytesIO(response.content))
    original = Image.open(io.BytesIO(street_picture))
    assert rendered.size == original.size
    assert np.abs(np.asarray(rendered, np.int16) - np.asarray(original, np.int16)).max() > 60


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
    boxes: Boxes, demo: Path, cat: bytes, box: RunningBox
) -> None:
    without_nginx = boxes(demo, ("box",), TRIREME_NGINX="off")
    first, second = (
        each.send(cat, "image/png", params={"modelname": "resnet"}) for each in (without_nginx, box)
    )
    assert first.json() == second.json()
    assert without_nginx.invoke("nobody", {}).status_code == 404
    assert without_nginx.metric("trireme_invocations_total") > 0
    # The worker on the port forwards the request to the control plane, which keeps the history.
    processes = requests.get(f"{without_nginx.url}/dashboard/data", timeout=5).json()["box"]["processes"]
    assert "nginx" not in {row["name"] for row in processes}
