"""A small body takes no large memory: what it would take is refused or accounted before it is used."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from onnx import TensorProto, helper, numpy_helper

from sm.client.base import TensorClient
from sm.client.decode_budget import DecodeBudget
from sm.client.payloads import TensorPayload, read_npy
from sm.client.tasks import sound
from sm.client.tasks.tabular import MAX_ROWS, Rows
from sm.client.tasks.text import MAX_CANDIDATES
from sm.errors import BadInput, TooLarge, WrongPayload
from sm.router.classify import Message, estimate_parsed_bytes
from tests.support.memory import peak_of_process
from tests.support.onnx_graphs import save_graph
from tests.support.task_models import load_task, write_text_model

MIB = 2**20


def load_numbers(folder: Path) -> TensorClient:
    """A tabular model of two columns."""
    weights = (numpy_helper.from_array(np.array([[1], [10]], np.float32), "w"),)
    save_graph(
        folder / "model.onnx",
        [helper.make_node("MatMul", ["X", "w"], ["y"])],
        {"X": (TensorProto.FLOAT, ["b", 2])},
        {"y": (TensorProto.FLOAT, ["b", 1])},
        weights,
    )
    return load_task(folder, task="tabular")


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most memory that Python and NumPy took for a function, whatever it raises."""
    tracemalloc.start()
    try:
        work()
    except (BadInput, WrongPayload, TooLarge):
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


def ask(client: TensorClient, **payload: Any) -> Any:
    return client.inference(client.payload.model_validate(payload))


@pytest.mark.parametrize("value", ["1" * 2000, "x" * 2000, " " * 2000, [1] * 2000, {"a": 1}])
def test_a_long_text_among_numbers_is_refused(tmp_path: Path, value: object) -> None:
    client = load_numbers(tmp_path / "matrix")
    rows: list[list[object]] = [[1, 2]] * 8000
    rows[5] = [value, 2]
    with pytest.raises(WrongPayload) as refusal:
        ask(client, rows=rows)
    assert refusal.value.details["field"] == "payload.rows[5]"
    assert peak_bytes(lambda: ask(client, rows=rows)) < 4 * MIB


def test_texts_of_numbers_are_read_as_before(tmp_path: Path) -> None:
    client = load_numbers(tmp_path / "columns")
    rows = [["31", " 5.2e2 "], ["64", "1.00000000000000000000000001"]]
    assert ask(client, rows=rows) == [{"y": 5231.0}, {"y": 74.0}]


@pytest.mark.parametrize("line", [b"\n", b"1\n", b"1,2\n"])
def test_lines_of_csv_beyond_the_limit_take_no_memory(line: bytes) -> None:
    body = line * (100 * MAX_ROWS)
    assert len(Rows.fields_of_raw(body)["rows"]) <= MAX_ROWS + 1
    assert peak_bytes(lambda: Rows.fields_of_raw(body)) < 10 * len(body) + 4 * MIB


def test_cells_of_csv_are_accounted() -> None:
    body = b"12," * MIB + b"\n" * MIB
    headers = {"content-type": "text/csv"}
    assert estimate_parsed_bytes(Message(body, headers, {}, "")) >= 50 * 2 * MIB
    assert estimate_parsed_bytes(Message(b"1,2\n", headers, {}, "")) == 0


@pytest.mark.parametrize(
    "request_body",
    [
        {"text": "a", "labels": ["x" * 20_000], "parameters": {"hypothesis": "{}" * 3000}},
        {"text": "a" * 20_000, "labels": ["x" * 20_000, "y"]},
        {"text": "a", "labels": ["b", "x" * 40_000]},
    ],
)
def test_sentences_of_labels_are_refused_before_they_are_made(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    labels = ("contradiction", "neutral", "entailment")
    write_text_model(tmp_path / "nli", "text-classification", labels)
    client = load_task(tmp_path / "nli", task="zero-shot-classification")
    with pytest.raises(WrongPayload) as refusal:
        ask(client, **request_body)
    assert refusal.value.details["field"] == "payload.text"
    assert peak_bytes(lambda: ask(client, **request_body)) < 4 * MIB


@pytest.mark.parametrize("truncate", [False, True])
def test_many_labels_of_a_long_text_take_the_memory_of_one(tmp_path: Path, truncate: bool) -> None:
    labels = ("contradiction", "neutral", "entailment")
    write_text_model(tmp_path / "nli", "text-classification", labels)
    client = load_task(tmp_path / "nli", task="zero-shot-classification", truncate=truncate, max_length=16)
    body = {"text": "." * 30_000, "labels": [str(number) for number in range(MAX_CANDIDATES)]}

    def work() -> None:
        try:
            ask(client, **body)
        except WrongPayload:
            assert not truncate

    work()  # what is taken once
    assert peak_of_process(work) < 64 * MIB


def test_answers_in_a_long_context_take_memory_for_each_token(tmp_path: Path) -> None:
    write_text_model(tmp_path / "answers", "question-answering", ())
    client = load_task(tmp_path / "answers", task="question-answering", max_length=5000)
    body = {"question": "where ?", "context": "ada " * 4000}
    assert ask(client, **body)
    assert peak_bytes(lambda: ask(client, **body)) < 64 * MIB


def recording(seconds: float, rate: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(int(seconds * rate), np.int16), rate, format="FLAC")
    return file.getvalue()


@pytest.mark.parametrize("rate", [8_000, 16_000, 192_000])
def test_a_recording_is_accounted_by_its_frames(monkeypatch: pytest.MonkeyPatch, rate: int) -> None:
    content = recording(10.0, rate)
    taken: list[int] = []

    class Noted(DecodeBudget):
        def acquire(self, size: int, model: str | None = None) -> str:
            taken.append(size)
            return super().acquire(size, model)

    monkeypatch.setattr(sound, "DECODED", Noted(2**40))
    peak = peak_bytes(lambda: sound.read_recording(content, 16_000, 30.0))
    assert peak < taken[0] + 4 * MIB
    monkeypatch.setattr(sound, "DECODED", DecodeBudget(MIB))
    with pytest.raises(TooLarge):
        sound.read_recording(content, 16_000, 30.0)


@pytest.mark.parametrize("shape", [(2147483647, 0), (0, 2147483647), (100000, 100000, 0)])
def test_an_empty_array_has_no_large_sides(shape: tuple[int, ...]) -> None:
    stream = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[no-untyped-call]
    with pytest.raises(BadInput):
        read_npy(stream.getvalue())


def test_a_text_in_a_tensor_is_refused_before_it_is_an_array() -> None:
    numbers: list[object] = [1] * 5000
    payload = TensorPayload(tensor=[*numbers, "x" * 3000])
    with pytest.raises(BadInput):
        _ = payload.array
    assert peak_bytes(lambda: TensorPayload(tensor=[*numbers, "x" * 3000]).array) < MIB
