"""A real box serves models with a ``task.json`` and no client file: answers, embeddings API, reload, check."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import requests
import soundfile
from numpy.typing import NDArray

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until
from tests.support.check_client import check_client
from tests.support.task_models import (
    new_model,
    tones,
    write_segmenter,
    write_sound_model,
    write_text_model,
    write_translator,
)

TASKS = {"mood": ("text-classification", ("sad", "glad", "mad")), "sentences": ("sentence-embeddings", ())}
COLOURS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose models the command wrote."""
    folder = tmp_path_factory.mktemp("team")
    for name, (task, labels) in TASKS.items():
        write_text_model(folder / "source" / name, task, labels)
        new_model(name, folder, folder / "source" / name, "--task", task)
    source = folder / "source" / "areas"
    write_segmenter(source, COLOURS)
    options = ("--labels", source / "labels.txt", "--preprocess", source / "preprocess.json")
    new_model("areas", folder, source / "model.onnx", "--task", "image-segmentation", *options)
    new_model(
        "speech", folder, write_sound_model(folder / "source" / "speech", "automatic-speech-recognition")
    )
    new_model("german", folder, write_translator(folder / "source" / "german"))
    return folder


@pytest.fixture(scope="module")
def box(boxes: Boxes, team: Path) -> Iterator[RunningBox]:
    with boxes.own(team / "model", arguments="--reload") as started:
        yield started


@pytest.mark.parametrize("name", [*TASKS, "areas", "speech"])
def test_the_box_gives_the_golden_answer(box: RunningBox, team: Path, name: str) -> None:
    payload, golden = (
        json.loads((team / "model" / name / "sample" / f"{part}.json").read_text())
        for part in ("payload", "golden")
    )
    answer = box.invoke(name, payload).json()["result"]
    if name == "mood":
        assert [row["label"] for row in answer] == [row["label"] for row in golden]
        assert [row["score"] for row in answer] == pytest.approx([row["score"] for row in golden], abs=1e-3)
    elif name in ("areas", "speech"):
        assert answer == golden
    else:
        np.testing.assert_allclose(answer["embedding"], golden["embedding"], atol=1e-3)


def test_a_list_of_texts_of_different_lengths_fails_where_one_is_bad(box: RunningBox) -> None:
    texts = [{"text": "ada"}, {"text": "ada lives in paris ."}, {"text": "ada " * 20_000}]
    results = box.invoke("mood", texts).json()["result"]
    assert [isinstance(row, list) for row in results] == [True, True, False]
    assert results[2]["code"] == "wrong_payload"


def test_a_recording_is_a_raw_body_and_one_of_hours_a_400_with_the_limit(box: RunningBox) -> None:
    def send(samples: NDArray[np.float32], rate: int) -> requests.Response:
        file = io.BytesIO()
        soundfile.write(file, samples, rate, format="FLAC")
        url, headers = f"{box.url}/invocations?modelname=speech", {"Content-Type": "audio/flac"}
        return requests.post(url, data=file.getvalue(), headers=headers, timeout=30)

    assert send(tones("abba cab", 44_100), 44_100).json()["result"] == {"text": "abba cab"}
    refused = send(np.zeros(3 * 3600 * 1000, np.float32), 1000)
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_input")


def test_a_translation_is_whole_or_streamed_in_parts(box: RunningBox) -> None:
    answer = box.invoke("german", {"text": "ada lives in paris"}).json()
    assert answer == {"modelname": "german", "result": {"text": "ada wohnt in paris"}}
    headers = {"Content-Type": "text/plain", "Accept": "text/event-stream"}
    url = f"{box.url}/invocations?modelname=german"
    streamed = requests.post(url, data="ada lives in paris", headers=headers, timeout=30).text
    parts = [json.loads(line.removeprefix("data: "))["result"] for line in streamed.splitlines() if line]
    assert parts == ["ada", " wohnt", " in", " paris"]
    cut = {"modelname": "german", "payload": {"text": "ada lives in paris"}, "parameters": {"max_tokens": 2}}
    answer = requests.post(f"{box.url}/invocations", json=cut, timeout=30)
    assert answer.json()["result"] == {"text": "ada wohnt"}


def test_sentence_embeddings_are_served_as_openais_api(box: RunningBox) -> None:
    body = {"model": "sentences", "input": ["ada lives in paris .", "where ?"]}
    answer = requests.post(f"{box.url}/v1/embeddings", json=body, timeout=30).json()
    assert [np.linalg.norm(row["embedding"]) for row in answer["data"]] == pytest.approx([1, 1], abs=1e-5)
    assert answer["usage"]["prompt_tokens"] == 7 + 4


def test_a_changed_option_is_live_without_a_restart(box: RunningBox, team: Path) -> None:
    file = team / "model" / "sentences" / "task.json"
    before = file.read_text()
    file.write_text(json.dumps({"task": "sentence-embeddings", "normalise": False, "pooling": "cls"}))

    def norm() -> float:
        answer = box.invoke("sentences", {"text": "ada"}).json()
        return float(np.linalg.norm(answer["result"]["embedding"]))

    try:
        wait_until(lambda: abs(norm() - 1) > 0.01, description="the changed option")
    finally:
        file.write_text(before)


@pytest.mark.exhaustive
def test_check_client_passes_for_a_model_without_a_client_file(team: Path) -> None:
    result = check_client(team, "mood")
    assert result.failed == {}
