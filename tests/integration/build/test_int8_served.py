"""A folder of pictures with right boxes becomes a served model in int8, as docs/run/cpu-engines.md says."""

from __future__ import annotations

import base64
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from PIL import Image, ImageEnhance

from sm.repository.manifest import Manifest
from sm.settings import HERE
from tests.support.boxes import running_box
from tests.support.client_environments import python_with
from trireme_tools.build.int8_cost import Quantized

#: The cat in the sample chelsea.jpg, in YOLO's form.
CAT = "15 0.47 0.49 0.9 0.98\n"
BUILD = "build-model yolov5 --precision int8 --calibration dataset/images/val --max-drop 1% --out models"
#: ``sm`` with NNCF beside the packages of this environment.
SM = "import sys; sys.path.append({!r}); from sm.cli import main; sys.exit(main())"


@pytest.mark.exhaustive
def test_pictures_with_right_boxes_become_a_served_model(tmp_path: Path) -> None:
    both = [f"{name}=={importlib.metadata.version(name)}" for name in ("openvino", "numpy")]
    home = python_with("nncf==3.4.0", "pycocotools==2.0.11", *both).parents[1]
    (packages,) = map(str, home.glob("lib/python3*/site-packages"))
    pictures, labels = tmp_path / "dataset/images/val", tmp_path / "dataset/labels/val"
    pictures.mkdir(parents=True)
    labels.mkdir(parents=True)
    with Image.open(HERE / "clients/yolov5/sample/chelsea.jpg") as opened:
        for number in range(9):
            ImageEnhance.Brightness(opened).enhance(0.8 + number / 20).save(pictures / f"{number}.jpg")
            (labels / f"{number}.txt").write_text(CAT)
    said = {}
    for command in (BUILD, "inspect models"):
        words = [sys.executable, "-c", SM.format(packages), *command.split()]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE / "extensions")))}
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stderr
        said[command] = done.stdout
    made = Manifest.read(tmp_path / "models/yolov5/1")
    assert made is not None
    cost = Quantized.model_validate(made.quantized)
    assert (cost.measure, cost.data) == ("mAP@0.5:0.95", "val")
    assert (cost.controlled, cost.held_out) == (6, 3)
    assert cost.before > 0.5
    assert cost.before - cost.after <= 0.01
    assert "| all, mAP@0.5 | 9 | 100.0% | 100.0% |" in (tmp_path / "models/yolov5/accuracy.md").read_text()
    assert "mAP@0.5:0.95" in said["inspect models"]
    with running_box(tmp_path, tmp_path / "models", TRIREME_PRECISION="auto") as box:
        (found,) = requests.get(f"{box.url}/models/yolov5", timeout=60).json()["engines"]
        assert (found["engine"], found["precision"]) == ("openvino", "int8"), found
        content = base64.b64encode((pictures / "4.jpg").read_bytes()).decode()
        request = {
            "modelname": "yolov5",
            "payload": {"image": content},
            "parameters": {"format": "detections", "confidence": 0.1},
        }
        answer = requests.post(f"{box.url}/invocations", json=request, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["result"][0]["label"] == "cat"
