"""``/models`` of a box with a repository of its own."""

from __future__ import annotations

import requests

from tests.support.boxes import RunningBox


def test_one_of_the_models_served_is_shown_as_in_the_list(box: RunningBox) -> None:
    rows = requests.get(f"{box.url}/models", timeout=5).json()["models"]
    shown = requests.get(f"{box.url}/models/resnet", timeout=5).json()
    assert shown in rows
    assert (shown["modelName"], shown["ready"]) == ("resnet", True)
    assert requests.get(f"{box.url}/models/nobody", timeout=5).status_code == 404


def test_a_model_is_invoked_by_its_path_whatever_else_is_named(box: RunningBox, cat: bytes) -> None:
    response = requests.post(
        f"{box.url}/models/resnet/invoke?modelname=yolov5",
        data=cat,
        headers={"Content-Type": "image/png", "X-Amzn-SageMaker-Target-Model": "bert_base"},
        timeout=30,
    )
    assert response.json()["modelname"] == "resnet"
    assert requests.post(f"{box.url}/models/nobody/invoke", data=cat, timeout=5).status_code == 404


def test_outside_of_multi_model_mode_nothing_is_loaded_or_unloaded(box: RunningBox) -> None:
    body = {"model_name": "x", "url": "/opt/ml/models/x/model"}
    assert requests.post(f"{box.url}/models", json=body, timeout=5).status_code == 405
    assert requests.delete(f"{box.url}/models/resnet", timeout=5).status_code == 405
