"""Graphs with scalars, texts, branches and strides can be built, served by a box and invoked."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from sm.build.build_request import BuildRequest
from sm.build.model_builder import ModelBuilder
from sm.build.onnx_graph import Graph
from sm.commands.progress import Progress
from sm.repository.cache import Cache
from sm.repository.manifest import Manifest
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.onnx_graphs import branches, plus_row, same_text, scaled, strided, wrongly_declared

GRAPHS: dict[str, Callable[[Path], Graph]] = {
    "scaled": scaled,
    "branches": branches,
    "same_text": same_text,
    "strided": lambda path: strided(path, 32),
    "plus_row": lambda path: plus_row(path, 203),
    "wrongly_declared": wrongly_declared,
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newcomers")
    (folder / "model").mkdir()
    builder = ModelBuilder(Cache(folder / "cache"), folder / "model", Progress(io.StringIO()))
    for name, make_graph in GRAPHS.items():
        source = make_graph(folder / "source" / f"{name}.onnx").path
        builder.build(BuildRequest(name, "cpu", folder / "out", source, compare=name != "plus_row"))
    return folder / "out"


@pytest.fixture
def box(boxes: Boxes, repository: Path) -> RunningBox:
    return boxes(repository)


def infer(box: RunningBox, model: str, **inputs: tuple[str, list[int], list[Any]]) -> requests.Response:
    tensors = [
        {"name": name, "datatype": datatype, "shape": shape, "data": data}
        for name, (datatype, shape, data) in inputs.items()
    ]
    return requests.post(f"{box.url}/v2/models/{model}/infer", json={"inputs": tensors}, timeout=30)


def output_data(response: requests.Response) -> dict[str, list[Any]]:
    assert response.status_code == 200, response.text
    return {output["name"]: output["data"] for output in response.json()["outputs"]}


def test_a_scalar_input_is_a_list_of_one_number(box: RunningBox) -> None:
    ones = ("FP32", [2, 4], [1.0] * 8)
    assert output_data(infer(box, "scaled", x=ones, factor=("FP32", [1], [3.0]))) == {
        "y": [3.0] * 8,
        "sum": [24.0],
    }


@pytest.mark.parametrize(("rate", "expected"), [(16000, 2.0), (8000, 8001.0)])
def test_both_branches_on_a_scalar_work(box: RunningBox, rate: int, expected: float) -> None:
    response = infer(box, "branches", x=("FP32", [1, 3], [1.0] * 3), rate=("INT64", [1], [rate]))
    assert output_data(response) == {"y": [expected] * 3}


def test_texts_can_be_inputs_and_outputs(box: RunningBox) -> None:
    inputs = {"text": ("BYTES", [2, 1], ["Käse", ""]), "other": ("BYTES", [2, 1], ["Käse", "x"])}
    assert output_data(infer(box, "same_text", **inputs)) == {"echo": ["Käse", ""], "equal": [True, False]}


def test_a_height_and_width_that_were_not_tried_at_the_build_work(box: RunningBox) -> None:
    outputs = output_data(infer(box, "strided", x=("FP32", [1, 1, 96, 32], [1.0] * (96 * 32))))
    assert outputs == {"y": [2.0] * (96 * 32)}


def test_a_size_that_the_graph_refuses_is_an_error_and_the_box_goes_on(box: RunningBox) -> None:
    assert infer(box, "strided", x=("FP32", [1, 1, 40, 40], [1.0] * 1600)).status_code >= 400
    assert box.ping()[0] == 200


def test_an_output_of_another_rank_than_the_graph_declares_is_served_as_it_is(box: RunningBox) -> None:
    response = infer(box, "wrongly_declared", x=("FP32", [1, 2, 4], [1.0] * 8))
    (output,) = response.json()["outputs"]
    assert output["shape"] == [1, 2, 1, 4]
    metadata = requests.get(f"{box.url}/v2/models/wrongly_declared", timeout=30).json()
    assert metadata["outputs"][0]["shape"] == [-1, -1, -1, -1]


def test_the_log_has_no_lines_of_onnx_runtime(box: RunningBox) -> None:
    infer(box, "strided", x=("FP32", [1, 1, 40, 40], [1.0] * 1600))
    infer(box, "wrongly_declared", x=("FP32", [1, 2, 4], [1.0] * 8))
    assert "onnxruntime:" not in box.log.read_text()


def test_the_manifest_says_if_a_model_was_not_compared(repository: Path) -> None:
    manifest = Manifest.read(repository / "plus_row" / "1")
    assert manifest is not None
    assert manifest.accuracy is None
    assert "--no-compare" in manifest.warnings[0]
