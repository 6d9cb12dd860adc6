"""A model that is served without code answers as the system that it comes from.

The models are of transformers, sentence-transformers and Ultralytics, from a seed; ``make_references.py`` lets
each system export its graph and answer the same requests, in an environment of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm.client.base import Client
from tests.e2e.reference.environment import answers, references
from tests.support.task_models import ask, in_process, load_task_client, new_model
from tests.unit.client import pipelines

pytestmark = pytest.mark.exhaustive

#: Of a score or a vector's number; of a detector's score, which has four digits, and of a corner in pixels: a
#: picture that is resized by another library differs by a grey level here and there.
TOLERANCE, SCORE, PIXELS = 1e-4, 2e-3, 0.1
MODELS = (
    *("yolov8n", "yolo26n", "yolov8n_seg", "yolov8n_pose", "rtdetr"),
    *("rt_detr", "detr"),
    *("text_classification", "fill_mask", "token_classification", "sentences", "t5"),
    *("sound_classes", "speech"),
)


@pytest.fixture(scope="module")
def made() -> Path:
    return references()


def serve(made: Path, name: str, task: str, into: Path) -> Client:
    """Return the client of a model that ``sm new-model`` has made of the system's folder or graph."""
    source = made / name
    if not (source / "config.json").is_file():  # an export of Ultralytics is one file
        source /= "model.onnx"
    folder = new_model(name, into, source, "--task", task)
    graph = folder / "1" / "model.onnx"
    decoder = folder.with_name(f"{name}_decoder")
    beside = {decoder.name: in_process(decoder / "1" / "model.onnx")} if decoder.is_dir() else None
    options = json.loads((folder / "task.json").read_text())
    return load_task_client(folder, in_process(graph, beside), options)


def differences(found: Any, expected: Any, place: str = "") -> list[str]:
    """Return where an answer differs from the expected one."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if found.keys() != expected.keys():
            return [f"{place}: {sorted(found)} for {sorted(expected)}"]
        return [
            each for name in expected for each in differences(found[name], expected[name], f"{place}.{name}")
        ]
    if isinstance(expected, list) and isinstance(found, list):
        if len(found) != len(expected):
            return [f"{place}: {len(found)} items for {len(expected)}"]
        pairs = enumerate(zip(found, expected, strict=True))
        return [each for number, pair in pairs for each in differences(*pair, f"{place}[{number}]")]
    if isinstance(expected, float):
        return [] if found == pytest.approx(expected, abs=TOLERANCE) else [f"{place}: {found} for {expected}"]
    return [] if found == expected else [f"{place}: {found!r} for {expected!r}"]


def corners(row: dict[str, Any]) -> list[float]:
    box = row["box"]
    return list(box.values()) if isinstance(box, dict) else box


def missing_objects(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> list[str]:
    """Return the objects that one of the answers lacks, in any order: some have nearly equal scores."""
    left, missing = [*found], []
    for row in expected:
        same = [
            each
            for each in left
            if each["class_id"] == row["class_id"]
            and abs(each["score"] - row["score"]) <= SCORE
            and max(abs(own - right) for own, right in zip(corners(each), corners(row), strict=True))
            <= PIXELS
        ]
        if same:
            left.remove(same[0])
        else:
            missing.append(f"no {row}")
    return [*missing, *(f"too much: {row}" for row in left)]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_answers_as_its_own_system(made: Path, tmp_path: Path, name: str) -> None:
    task, rows = answers(made, name)
    client = serve(made, name, task, tmp_path)
    wrong = []
    for number, row in enumerate(rows):
        if task == "object-detection":
            wrong += missing_objects(ask(client, **row["payload"]), row["answer"])
            continue
        found, expected = pipelines.ask(client, row["inputs"], **row["parameters"]), row["answer"]
        wrong += [f"{number}{each}" for each in differences(found, expected)]
    assert not wrong, "\n".join(wrong[:40])
    if task == "object-detection":
        assert any(row["answer"] for row in rows), "no picture shows anything: the test compares nothing"
