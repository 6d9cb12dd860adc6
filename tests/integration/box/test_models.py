"""``/models`` of a box in single-model mode, which serves a repository."""

from __future__ import annotations

import requests

from tests.support.boxes import RunningBox


def test_a_single_model_is_shown_as_in_the_list(box: RunningBox) -> None:
    rows = requests.get(f"{box.url}/models", timeout=5).json()["models"]
    model = requests.get(f"{box.url}/models/resnet", timeout=5).json()
    assert model in rows
    assert (model["modelName"], model["ready"]) == ("resnet", True)
    assert (model["versions"], model["client"]) == (["1"], "Resnet")
    assert requests.get(f"{box.url}/models/nobody", timeout=5).status_code == 404


def test_the_model_in_the_path_wins_over_query_and_header(box: RunningBox, cat: bytes) -> None:
    response = requests.post(
        f"{box.url}/models/resnet/invoke?modelname=yolov5",
        data=cat,
        headers={"Content-Type": "image/png", "X-Amzn-SageMaker-Target-Model": "bert_base"},
        timeout=30,
    )
    assert response.json()["modelname"] == "resnet"
    assert requests.post(f"{box.url}/models/nobody/invoke", data=cat, timeout=5).status_code == 404


def test_outside_multi_model_mode_load_and_unload_are_405(box: RunningBox) -> None:
    body = {"model_name": "x", "url": "/opt/ml/models/x/model"}
    assert requests.post(f"{box.url}/models", json=body, timeout=5).status_code == 405
    assert requests.delete(f"{box.url}/models/resnet", timeout=5).status_code == 405
