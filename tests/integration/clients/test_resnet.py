"""The resnet client on a real Triton gives TensorFlow.js's golden answers in the reference system's rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clients.resnet.client import ClassifiedPicture
from sm.build.graph_runner import session
from sm.build.onnx_graph import Graph
from sm.build.samples import InProcess
from sm.client import Client, Triton
from sm.client.images import decode
from sm.errors import StartError
from sm.plugins.checks import check
from sm.plugins.loading import ClientSource, load
from sm.settings import HERE, Settings
from sm.triton.transport import Transport
from tests.support.oriented_pictures import enlarged_jpeg

FOLDER = HERE / "clients" / "resnet"
SAMPLE = FOLDER / "sample"
PICTURES: dict[str, list[str]] = json.loads((SAMPLE / "golden-pictures.json").read_text())


def load_client(transport: Triton, repository: Path) -> Client:
    source = ClientSource("resnet", FOLDER / "client.py")
    client = load(source, transport, repository)
    check(client, source, transport)
    return client


@pytest.fixture(scope="module")
def client(transport: Transport, repository: Path) -> Client:
    return load_client(transport, repository)


def classified_picture(image: object, **parameters: Any) -> ClassifiedPicture:
    return ClassifiedPicture.model_validate({"image": image, "parameters": parameters})


def split_row(row: str) -> tuple[float, list[str]]:
    score, *rest = row.split(":")
    return float(score), rest


def assert_equal(rows: Any, golden: list[str]) -> None:
    """Check that classes and order are equal, and scores within a thousandth."""
    assert [split_row(row)[1] for row in rows] == [split_row(row)[1] for row in golden]
    assert [split_row(row)[0] for row in rows] == pytest.approx(
        [split_row(row)[0] for row in golden], abs=1e-3
    )


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_picture_gets_the_classes_of_tensorflow_js(client: Client, name: str) -> None:
    assert_equal(client.inference(classified_picture((SAMPLE / name).read_bytes())), PICTURES[name])


def test_the_sample_payload_gets_its_golden_answer(client: Client) -> None:
    payload = ClassifiedPicture.model_validate_json((SAMPLE / "payload.json").read_bytes())
    assert_equal(client.inference(payload), json.loads((SAMPLE / "golden.json").read_text()))


def test_a_row_is_score_index_index_label(client: Client) -> None:
    rows: Any = client.inference(classified_picture((SAMPLE / "cat.png").read_bytes(), top=1))
    (row,) = rows
    score, rest = split_row(row)
    assert rest == ["285", "285", "Egyptian cat"]
    assert row == f"{score:f}:285:285:Egyptian cat"


@pytest.mark.parametrize("top", [1, 5, 1000])
def test_top_sets_the_number_of_rows_best_first(client: Client, top: int) -> None:
    rows: Any = client.inference(classified_picture((SAMPLE / "cat.png").read_bytes(), top=top))
    scores = [split_row(row)[0] for row in rows]
    assert len({split_row(row)[1][0] for row in rows}) == top
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("name", ["coffee.jpg", "cat.png"])
def test_a_photograph_decoded_smaller_gets_the_class_and_score_of_the_full_one(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    photograph = enlarged_jpeg(SAMPLE / name)
    small: Any = client.inference(classified_picture(photograph, top=1))
    monkeypatch.setattr(ClassifiedPicture, "pixels_at_least", lambda self, *_: decode(self.image))
    full: Any = client.inference(classified_picture(photograph, top=1))
    assert split_row(small[0])[1] == split_row(full[0])[1]
    assert split_row(small[0])[0] == pytest.approx(split_row(full[0])[0], rel=0.02)


@pytest.fixture(scope="module")
def float_model() -> InProcess:
    """The recipe's own graph, whose input is float tensors, as a team's model may be."""
    (graph,) = (Settings.read({}).cache / "models" / "resnet").glob("*/model.onnx")
    return InProcess(Graph.read(graph), session(graph))


def test_a_model_with_float_input_gives_the_same_answers(float_model: InProcess, repository: Path) -> None:
    client = load_client(float_model, repository)
    for name, golden in PICTURES.items():
        assert_equal(client.inference(classified_picture((SAMPLE / name).read_bytes())), golden)


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
    transport: Transport, repository: Path, tmp_path: Path, file: str, text: str, named: str
) -> None:
    folder = tmp_path / "resnet"
    folder.mkdir()
    for name in ("labels.txt", "preprocess.json"):
        (folder / name).write_text((repository / "resnet" / name).read_text())
    (folder / file).write_text(text)
    with pytest.raises(StartError, match=named):
        load_client(transport, tmp_path)
