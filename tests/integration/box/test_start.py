"""A box starts within seconds with any valid client, or ends with one sentence and exit status 1."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import requests

from bench import tree
from sm.settings import HERE
from tests.support.box_fixture import Boxes, write_models
from tests.support.boxes import wait_until
from tests.support.model_archives import chain_config, multiplying_model
from tests.support.tritons import ECHO_REQUEST


def test_a_healthy_start_without_a_gpu_logs_no_error(boxes: Boxes, tmp_path: Path) -> None:
    # Triton starts a Python model's process through a shell and does not quote the path.
    repository = tmp_path / "Größere Modelle (neu)"
    models = dict.fromkeys(("pre", "post"), multiplying_model(2))
    write_models({**models, "whole": chain_config("pre", "post")}, repository)
    for folder in ("code", ".ipynb_checkpoints"):  # Triton would take them for models
        (repository / folder).mkdir()
        (repository / folder / "notes.txt").write_text("notes")
    with boxes.own(repository) as box:
        response = requests.post(f"{box.url}/v2/models/whole/infer", json=ECHO_REQUEST, timeout=30)
        assert response.json()["outputs"][0]["data"] == [4.0, 8.0], response.text
        lines = [json.loads(line) for line in box.log.read_text().splitlines()]
    assert [line for line in lines if line["level"] in ("warning", "error", "critical")] == []


def client_of_the_readme() -> str:
    readme = (HERE / "README.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", readme, re.S) if "class Hello" in block)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    return str(code)


def test_a_start_answers_503_with_the_reason_until_its_models_are_ready(
    boxes: Boxes, demo: Path, cat: bytes
) -> None:
    """It takes at most two cores for ten seconds. Wall-clock time would depend on what else the machine does."""

    def first_ping() -> tuple[int, str] | None:
        status, reason = box.ping()
        return (status, reason) if status else None

    with boxes.own(demo, ({"hello/client.py": client_of_the_readme()},), ready_within_s=0) as box:
        status, reason = wait_until(first_ping, description="an answer to /ping")
        assert status == 503, reason
        assert json.loads(reason)["error"]
        response = box.invoke("resnet", {})
        assert response.status_code == 503
        assert response.headers["Retry-After"]
        assert response.json()["code"] == "not_ready"
        box.wait_ready()
        assert tree.processor_seconds(box.process.pid) < 2 * 10
        response = box.send(cat, "image/png", params={"modelname": "hello"})
        assert response.json()["result"]["cat"] > 0.5


def test_a_model_that_cannot_load_stops_the_start_with_its_name(
    boxes: Boxes, demo: Path, tmp_path: Path
) -> None:
    model_folder = tmp_path / "models" / "resnet"
    shutil.copytree(demo / "resnet", model_folder, copy_function=shutil.copy)
    (model_folder / "1" / "model.onnx").write_bytes(b"no model")
    assert "resnet" in boxes.failed_start(tmp_path / "models")
