"""``HF_MODEL_ID`` and ``HF_TASK`` serve a folder of Hugging Face's form, as SageMaker's containers for it do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm.errors import StartError
from sm.server.hugging_face import repository_of
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


def refused(tmp_path: Path, folder: str, task: str = "") -> str:
    environment = {"HF_TASK": task, "TRIREME_CACHE": str(tmp_path / "cache")}
    with pytest.raises(StartError) as failure:
        repository_of(Settings.read(environment), Path(folder))
    return str(failure.value)


def test_what_cannot_be_served_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    folder = str(write_checkpoint(tmp_path / "mood"))
    assert "audio-classification" in refused(tmp_path, folder)
    assert "'chat'" in refused(tmp_path, folder, "chat")
    assert "sm new-model" in refused(tmp_path, "owner/name", "text-classification")
    (tmp_path / "mood" / "model.onnx").write_bytes(b"not a graph")
    assert refused(tmp_path, folder, "text-classification").startswith("HF_MODEL_ID: ")
