"""All three models, built anew by ``sm build-model`` from their recipes, and served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from sm.inspection import problems
from sm.repository.manifest import Manifest
from sm.settings import HERE
from tests.support.boxes import RunningBox, running_box

MODELS = ("resnet", "yolov5", "bert_base")
#: Targets, and Triton's backend of each.
BACKENDS = {"cpu": "python", "onnxruntime": "onnxruntime"}


def build(repository: Path, name: str, target: str) -> None:
    """As one types it."""
    line = [sys.executable, "-m", "sm.cli", "build-model", name, "--target", target, "--out", str(repository)]
    completed = subprocess.run(line, cwd=HERE, capture_output=True, text=True, env=dict(os.environ))
    assert completed.returncode == 0, completed.stderr


@pytest.fixture(scope="module")
def built(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a repository of each target; ``demo`` has fetched the weights."""
    folder = tmp_path_factory.mktemp("built")
    for target in BACKENDS:
        for name in MODELS:
            build(folder / target, name, target)
    return folder


@pytest.fixture(scope="module")
def rebuilt(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """The wheel's Triton has no backend for the other target."""
    with running_box(tmp_path_factory.mktemp("rebuilt"), built / "cpu") as box:
        yield box


@pytest.mark.parametrize("target", BACKENDS)
def test_a_target_of_all_three_is_whole_and_its_configurations_parse(built: Path, target: str) -> None:
    # The wheel's Triton has no backend for the other target.
    assert [each for each in problems.find_all(built / target) if not each.is_local] == []
    for name in MODELS:
        text = (built / target / name / "config.pbtxt").read_text()
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
        assert config.backend == BACKENDS[target]
        assert (config.name, config.max_batch_size, len(config.model_warmup)) == (name, 8, 1)


@pytest.mark.parametrize("name", MODELS)
def test_the_manifest_says_that_the_samples_are_answered_alike(built: Path, name: str) -> None:
    manifest = Manifest.read(built / "onnxruntime" / name / "1")
    assert manifest is not None
    assert manifest.accuracy is not None
    assert manifest.accuracy.samples in ((1, 1), (3, 3))


@pytest.mark.parametrize(("name", "tolerance"), [("resnet", 1e-3), ("yolov5", 1), ("bert_base", 1e-3)])
def test_the_golden_answers_are_unchanged(rebuilt: RunningBox, name: str, tolerance: float) -> None:
    """yolov5's come from PyTorch: the boxes are in pixels."""
    sample = HERE / "clients" / name / "sample"
    answer = rebuilt.invoke(name, json.loads((sample / "payload.json").read_text())).json()["result"]
    words, numbers = parted(answer)
    golden_words, golden_numbers = parted(json.loads((sample / "golden.json").read_text()))
    assert words == golden_words
    assert numbers == pytest.approx(golden_numbers, abs=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_the_answers_are_the_demos_byte_for_byte(rebuilt: RunningBox, box: RunningBox, name: str) -> None:
    payload = json.loads((HERE / "clients" / name / "sample" / "payload.json").read_text())
    assert rebuilt.invoke(name, payload).content == box.invoke(name, payload).content


def parted(answer: object) -> tuple[list[str], list[float]]:
    """The words and the numbers of an answer in order; a score at the beginning of a word is a number."""
    if isinstance(answer, str):
        score, colon, rest = answer.partition(":")
        return ([rest], [float(score)]) if colon else ([answer], [])
    if isinstance(answer, (int, float)):
        return [], [float(answer)]
    parts = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list) else []
    found = [parted(part) for part in parts]
    return [word for words, _ in found for word in words], [each for _, some in found for each in some]
