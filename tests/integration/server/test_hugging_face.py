"""``HF_MODEL_ID`` and ``HF_TASK`` serve a folder of Hugging Face's form, as SageMaker's containers for it do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm.errors import StartError
from sm.repository.model_makers import RepositorySource, make
from sm.settings import Settings
from tests.support.box_fixture import Boxes
from tests.support.task_models import write_text_model

LABELS = ("sad", "glad", "mad")


def write_checkpoint(folder: Path) -> Path:
    write_text_model(folder, "text-classification", LABELS)
    (folder / "labels.txt").unlink()
    return folder


def test_a_box_serves_the_folder_with_its_labels_and_task(boxes: Boxes, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "Mood-Small")
    variables: Any = {"HF_MODEL_ID": str(folder), "HF_TASK": "text-classification"}
    with boxes.own(TRIREME_CACHE=str(tmp_path / "cache"), **variables) as box:
        answer = box.invoke("mood_small", {"text": "ada lives in paris ."}).json()["result"]
        assert {row["label"] for row in answer} == set(LABELS)
        assert sum(row["score"] for row in answer) == pytest.approx(1)
        # Callers of a box with one model need not name it.
        assert box.send(json.dumps({"payload": {"text": "ada"}}).encode()).status_code == 200


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("mood", ""),
        ("mood", "chat"),
        ("owner/name", "text-classification"),
        ("no graph", "text-classification"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, name: str, task: str) -> None:
    for folder in ("mood", "no graph"):
        write_checkpoint(tmp_path / folder)
    (tmp_path / "no graph" / "model.onnx").write_bytes(b"not a graph")
    settings = Settings.read({"HF_TASK": task, "TRIREME_CACHE": str(tmp_path / "cache")})
    with pytest.raises(StartError):
        make(settings, RepositorySource(Path(name) if "/" in name else tmp_path / name, "HF_MODEL_ID"))
