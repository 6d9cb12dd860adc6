"""The three demo models, built by ``sm build-model`` from their recipes and served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from sm.repository import problems
from sm.repository.manifest import Manifest
from sm.settings import HERE
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.sm_command import run_sm

#: Minutes of building; tests/integration/build builds small graphs for every target.
pytestmark = pytest.mark.exhaustive

MODELS = ("resnet", "yolov5", "bert_base")
#: Targets, and Triton's backend of each.
BACKENDS = {"cpu": "python", "onnxruntime": "onnxruntime"}


def build_model(repository: Path, name: str, target: str) -> None:
    completed = run_sm("build-model", name, "--target", target, "--out", repository)
    assert completed.returncode == 0, completed.stderr


@pytest.fixture(scope="module")
def repositories(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a repository of each target; ``demo`` has fetched the weights."""
    folder = tmp_path_factory.mktemp("built")
    for target in BACKENDS:
        for name in MODELS:
            build_model(folder / target, name, target)
    return folder


@pytest.fixture
def built_box(boxes: Boxes, repositories: Path) -> RunningBox:
    """A box with the models built for ``cpu``: the wheel's Triton has no backend for the other target."""
    return boxes(repositories / "cpu", ("box",))


@pytest.mark.parametrize("target", BACKENDS)
def test_a_built_repository_is_complete_and_its_configurations_parse(repositories: Path, target: str) -> None:
    # The wheel's Triton has no backend for the other target.
    assert [problem for problem in problems.find_all(repositories / target) if not problem.is_local] == []
    for name in MODELS:
        text = (repositories / target / name / "config.pbtxt").read_text()
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
        assert config.backend == BACKENDS[target]
        assert (config.name, config.max_batch_size, len(config.model_warmup)) == (name, 8, 1)


@pytest.mark.parametrize("name", MODELS)
def test_the_manifest_records_that_every_sample_agrees(repositories: Path, name: str) -> None:
    manifest = Manifest.read(repositories / "onnxruntime" / name / "1")
    assert manifest is not None
    assert manifest.accuracy is not None
    assert manifest.accuracy.samples in ((1, 1), (3, 3), (6, 6))


@pytest.mark.parametrize(("name", "tolerance"), [("resnet", 1e-3), ("yolov5", 1), ("bert_base", 1e-3)])
def test_built_models_give_the_golden_answers(built_box: RunningBox, name: str, tolerance: float) -> None:
    """The tolerance of yolov5 is in pixels: its golden answer comes from PyTorch."""
    sample = HERE / "clients" / name / "sample"
    answer = built_box.invoke(name, json.loads((sample / "payload.json").read_text())).json()["result"]
    words, numbers = split_words_and_numbers(answer)
    golden_words, golden_numbers = split_words_and_numbers(json.loads((sample / "golden.json").read_text()))
    assert words == golden_words
    assert numbers == pytest.approx(golden_numbers, abs=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_built_models_answer_like_the_demo_byte_for_byte(
    built_box: RunningBox, box: RunningBox, name: str
) -> None:
    payload = json.loads((HERE / "clients" / name / "sample" / "payload.json").read_text())
    assert built_box.invoke(name, payload).content == box.invoke(name, payload).content


def split_words_and_numbers(answer: object) -> tuple[list[str], list[float]]:
    """The words and the numbers of an answer in order; a score at the beginning of a word is a number."""
    if isinstance(answer, str):
        score, colon, rest = answer.partition(":")
        return ([rest], [float(score)]) if colon else ([answer], [])
    if isinstance(answer, (int, float)):
        return [], [float(answer)]
    members = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list) else []
    split_parts = [split_words_and_numbers(part) for part in members]
    return [word for words, _ in split_parts for word in words], [
        number for _, part_numbers in split_parts for number in part_numbers
    ]
