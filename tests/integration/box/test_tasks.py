"""A real box serves models with a ``task.json`` and no client file. test_embeddings_api.py has texts' vectors."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.support.boxes import RunningBox, wait_until
from tests.support.check_client import check_client
from tests.support.task_models import tones


@pytest.fixture
def box(team_box: RunningBox) -> RunningBox:
    return team_box


@pytest.mark.parametrize("name", ["mood", "areas", "german"])
def test_the_box_gives_the_golden_answer(box: RunningBox, team: Path, name: str) -> None:
    payload, golden = (
        json.loads((team / "model" / name / "sample" / f"{part}.json").read_text())
        for part in ("payload", "golden")
    )
    answer = box.invoke(name, payload).json()["result"]
    if name == "mood":
        assert [row["label"] for row in answer] == [row["label"] for row in golden]
        assert [row["score"] for row in answer] == pytest.approx([row["score"] for row in golden], abs=1e-3)
    else:
        assert answer == golden


def test_a_list_of_texts_of_different_lengths_fails_where_one_is_bad(box: RunningBox) -> None:
    texts = [{"text": "ada"}, {"text": "ada lives in paris ."}, {"text": "ada " * 20_000}]
    first, second, third = box.invoke("mood", texts).json()["result"]
    assert (type(first), type(second), third["code"]) == (list, list, "wrong_payload")


def test_a_recording_is_a_raw_body(box: RunningBox) -> None:
    file = io.BytesIO()
    soundfile.write(file, tones("abba cab"), 16_000, format="FLAC")
    answer = box.send(file.getvalue(), "audio/flac", params={"modelname": "speech"})
    assert answer.json()["result"] == {"text": "abba cab"}


def test_a_translation_is_streamed_in_parts(box: RunningBox) -> None:
    events, text = {"Accept": "text/event-stream"}, b"ada lives in paris"
    streamed = box.send(text, "text/plain", headers=events, params={"modelname": "german"}).text
    parts = [json.loads(line.removeprefix("data: "))["result"] for line in streamed.splitlines() if line]
    assert parts == ["ada", " wohnt", " in", " paris"]


def test_a_changed_option_is_live_without_a_restart(box: RunningBox, team: Path) -> None:
    file = team / "model" / "encoder" / "task.json"
    before = file.read_text()
    file.write_text(json.dumps({"task": "sentence-embeddings", "normalise": False, "pooling": "cls"}))

    def norm() -> float:
        answer = box.invoke("encoder", {"text": "ada"}).json()
        return float(np.linalg.norm(answer["result"]["embedding"]))

    try:
        wait_until(lambda: abs(norm() - 1) > 0.01, description="the changed option")
    finally:
        file.write_text(before)
    wait_until(lambda: abs(norm() - 1) < 0.01, description="the first option")


@pytest.mark.exhaustive
def test_check_client_takes_a_models_folder_for_its_client(team: Path) -> None:
    assert check_client(team, "mood").failed == {}
