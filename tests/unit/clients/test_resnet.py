"""The resnet client gives TensorFlow.js's golden answers in the reference system's rows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from clients.resnet.client import ClassifiedPicture
from sm.client import Client
from sm.client.images import decode
from sm.errors import StartError
from sm.settings import HERE, Settings
from tests.support.oriented_pictures import enlarged_jpeg
from tests.support.task_models import in_process, load_built_in
from trireme_tools.build.samples import InProcess

SAMPLE = HERE / "clients" / "resnet" / "sample"
PICTURES: dict[str, list[str]] = json.loads((SAMPLE / "golden-pictures.json").read_text())


@pytest.fixture(scope="module")
def triton(repository: Path) -> InProcess:
    return in_process(repository / "resnet" / "1" / "model.onnx")


@pytest.fixture(scope="module")
def client(triton: InProcess, repository: Path) -> Client:
    return load_built_in("resnet", triton, repository)


def classify(client: Client, image: bytes, **parameters: Any) -> Any:
    return client.inference(ClassifiedPicture.model_validate({"image": image, "parameters": parameters}))


def split_rows(rows: Any) -> tuple[list[list[str]], list[float]]:
    """The classes of the rows, and their scores."""
    return [row.split(":")[1:] for row in rows], [float(row.split(":")[0]) for row in rows]


def assert_equal(rows: Any, golden: list[str]) -> None:
    """Check that classes and order are equal, and scores within a thousandth."""
    (classes, scores), (golden_classes, golden_scores) = split_rows(rows), split_rows(golden)
    assert classes == golden_classes
    assert scores == pytest.approx(golden_scores, abs=1e-3)


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_picture_gets_the_classes_of_tensorflow_js(client: Client, name: str) -> None:
    assert_equal(classify(client, (SAMPLE / name).read_bytes()), PICTURES[name])


def test_a_row_is_score_index_index_label(client: Client) -> None:
    rows = classify(client, (SAMPLE / "cat.png").read_bytes(), top=1)
    assert [re.sub(r"^-?\d+\.\d{6}:", "", row) for row in rows] == ["285:285:Egyptian cat"]


@pytest.mark.parametrize("top", [5, 1000])
def test_top_sets_the_number_of_rows_best_first(client: Client, top: int) -> None:
    classes, scores = split_rows(classify(client, (SAMPLE / "cat.png").read_bytes(), top=top))
    assert len({index for index, *_ in classes}) == top
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("name", ["coffee.jpg", "cat.png"])
def test_a_photograph_decoded_smaller_gets_the_class_and_score_of_the_full_one(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    photograph = enlarged_jpeg(SAMPLE / name)
    small = split_rows(classify(client, photograph, top=1))
    monkeypatch.setattr(ClassifiedPicture, "pixels_at_least", lambda self, *_: decode(self.image))
    full = split_rows(classify(client, photograph, top=1))
    assert small[0] == full[0]
    assert small[1] == pytest.approx(full[1], rel=0.02)


def test_a_model_with_float_input_gives_the_same_answers(repository: Path) -> None:
    """The recipe's own graph, as a team's model may be."""
    (graph,) = (Settings.read({}).cache / "models" / "resnet").glob("*/model.onnx")
    client = load_built_in("resnet", in_process(graph), repository)
    for name, golden in PICTURES.items():
        assert_equal(classify(client, (SAMPLE / name).read_bytes()), golden)


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("labels.txt", "one\n", "1 labels for 1000"),
        ("preprocess.json", "{}", r"preprocess\.json: resize"),
        ("preprocess.json", '{"resize":256,"crop":192,"channels":"RGB"}', "192 .* 224"),
        ("labels.txt", "0:a\n1:b\n", "2 labels for 1000"),
    ],
)
def test_invalid_labels_or_preprocess_json_stop_the_start(
    triton: InProcess, repository: Path, tmp_path: Path, file: str, text: str, named: str
) -> None:
    folder = tmp_path / "resnet"
    folder.mkdir()
    for name in ("labels.txt", "preprocess.json"):
        (folder / name).write_text((repository / "resnet" / name).read_text())
    (folder / file).write_text(text)
    with pytest.raises(StartError, match=named):
        load_built_in("resnet", triton, tmp_path)
