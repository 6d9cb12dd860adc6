"""A small body takes no large memory: what it would take is refused or accounted before it is used."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from sm.client.base import TensorClient
from sm.client.decode_budget import DecodeBudget
from sm.errors import TooLarge, WrongPayload
from tests.support.memory import peak_of_process
from tests.support.onnx_graphs import write_graph
from tests.support.task_models import ask, load_task, write_text_model
from tests.unit.client.memory import MIB, measured
from trireme_extensions.tasks import sound
from trireme_extensions.tasks.tabular import MAX_ROWS, Rows
from trireme_extensions.tasks.text import MAX_CANDIDATES


def check_refused(client: TensorClient, field: str, **payload: Any) -> None:
    """Check that a payload is refused by a field's name, in little memory."""
    for _ in range(2):  # what is taken once is taken by the first
        with measured() as peak, pytest.raises(WrongPayload) as refusal:
            ask(client, **payload)
    assert refusal.value.details["field"] == field
    assert peak.bytes < 4 * MIB


def load_zero_shot(folder: Path, **options: Any) -> TensorClient:
    write_text_model(folder, "text-classification", ("contradiction", "neutral", "entailment"))
    return load_task(folder, task="zero-shot-classification", **options)


@pytest.mark.parametrize(
    "value", ["1" * 2000, "x" * 2000, " " * 2000, [1] * 2000, {"a": 1}], ids=lambda value: str(value)[:6]
)
def test_a_long_text_among_numbers_is_refused(tmp_path: Path, value: object) -> None:
    """As an array it would make every other text as long: 16,000 times 2,000 characters."""
    matrix = "(float[b,2] X) => (float[b,1] y) <float[2,1] w = {1, 10}> { y = MatMul(X, w) }"
    write_graph(tmp_path / "model.onnx", matrix)
    rows: list[list[object]] = [[1, 2]] * 8000
    rows[5] = [value, 2]
    check_refused(load_task(tmp_path, task="tabular"), "payload.rows[5]", rows=rows)


@pytest.mark.parametrize("line", [b"\n", b"1,2\n"])
def test_lines_of_csv_beyond_the_limit_take_no_memory(line: bytes) -> None:
    body = line * (20 * MAX_ROWS)
    with measured() as peak:
        assert len(Rows.fields_of_raw(body)["rows"]) <= MAX_ROWS + 1
    assert peak.bytes < 10 * len(body) + 4 * MIB


@pytest.mark.parametrize(
    "payload",
    [
        {"text": "a", "labels": ["x" * 20_000], "parameters": {"hypothesis": "{}" * 3000}},
        {"text": "a" * 20_000, "labels": ["x" * 20_000, "y"]},
        {"text": "a", "labels": ["b", "x" * 40_000]},
    ],
)
def test_sentences_of_labels_are_refused_before_they_are_made(
    tmp_path: Path, payload: dict[str, Any]
) -> None:
    check_refused(load_zero_shot(tmp_path), "payload.text", **payload)


@pytest.mark.parametrize("truncate", [False, True])
def test_many_labels_of_a_long_text_take_the_memory_of_one(tmp_path: Path, truncate: bool) -> None:
    client = load_zero_shot(tmp_path, truncate=truncate, max_length=16)
    labels = [str(number) for number in range(MAX_CANDIDATES)]

    def work(length: int) -> None:
        try:
            ask(client, text="." * length, labels=labels)
        except WrongPayload:
            assert not truncate

    work(40)  # what is taken once
    # The text is read for one label after the other: at once they take over 16 MiB.
    assert peak_of_process(lambda: work(3000)) < 8 * MIB


def test_answers_in_a_long_context_take_memory_for_each_token(tmp_path: Path) -> None:
    write_text_model(tmp_path, "question-answering", ())
    client = load_task(tmp_path, task="question-answering", max_length=5000)
    with measured() as peak:
        assert ask(client, question="where ?", context="ada " * 4000)
    assert peak.bytes < 64 * MIB


@pytest.mark.parametrize("rate", [8_000, 16_000, 192_000])
def test_a_recording_is_accounted_by_its_frames(monkeypatch: pytest.MonkeyPatch, rate: int) -> None:
    file, taken = io.BytesIO(), list[int]()
    soundfile.write(file, np.zeros(10 * rate, np.int16), rate, format="FLAC")

    class Noted(DecodeBudget):
        def acquire(self, size: int, model: str | None = None) -> str:
            taken.append(size)
            return super().acquire(size, model)

    monkeypatch.setattr(sound, "DECODED", Noted(2**40))
    with measured() as peak:
        sound.read_recording(file.getvalue(), 16_000, 30.0)
    assert peak.bytes < taken[0] + 4 * MIB
    monkeypatch.setattr(sound, "DECODED", DecodeBudget(MIB))
    with pytest.raises(TooLarge):
        sound.read_recording(file.getvalue(), 16_000, 30.0)
