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
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.onnx_graphs import branches, same_text, scaled, strided, wrongly_declared

GRAPHS: dict[str, Callable[[Path], Graph]] = {
    "scaled": scaled,
    "branches": branches,
    "same_text": same_text,
    "strided": lambda path: strided(path, 32),
    "wrongly_declared": wrongly_declared,
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newcomers")
    (folder / "model").mkdir()
    builder = ModelBuilder(Cache(folder / "cache"), folder / "model", Progress(io.StringIO()))
    for name, make_graph in GRAPHS.items():
        source = make_graph(folder / "source" / f"{name}.onnx").path
        builder.build(BuildRequest(name, "cpu", folder / "out", source))
    return folder / "out"


@pytest.fixture
def box(boxes: Boxes, repository: Path) -> RunningBox:
    return boxes(repository)


def infer(box: RunningBox, model: str, **inputs: tuple[str, list[int], list[Any]]) -> requests.Response:
    tensors = [
        dict(zip(("name", "datatype", "shape", "data"), (name, *value), strict=True))
        for name, value in inputs.items()
    ]
    return requests.post(f"{box.url}/v2/models/{model}/infer", json={"inputs": tensors}, timeout=30)


ONES = ("FP32", [2, 4], [1.0] * 8)


@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [
        ("scaled", {"x": ONES, "factor": ("FP32", [1], [3.0])}, {"y": [3.0] * 8, "sum": [24.0]}),
        *(
            ("branches", {"x": ("FP32", [1, 3], [1.0] * 3), "rate": ("INT64", [1], [rate])}, {"y": [y] * 3})
            for rate, y in ((16000, 2.0), (8000, 8001.0))
        ),
        (
            "same_text",
            {"text": ("BYTES", [2, 1], ["Käse", ""]), "other": ("BYTES", [2, 1], ["Käse", "x"])},
            {"echo": ["Käse", ""], "equal": [True, False]},
        ),
        # A height and a width that were not tried at the build.
        ("strided", {"x": ("FP32", [1, 1, 96, 32], [1.0] * (96 * 32))}, {"y": [2.0] * (96 * 32)}),
    ],
)
def test_scalars_branches_texts_and_strides_are_served(
    box: RunningBox, model: str, inputs: dict[str, Any], outputs: dict[str, Any]
) -> None:
    response = infer(box, model, **inputs)
    assert response.status_code == 200, response.text
    assert {output["name"]: output["data"] for output in response.json()["outputs"]} == outputs


def test_an_output_of_another_rank_than_the_graph_declares_is_served_as_it_is(box: RunningBox) -> None:
    response = infer(box, "wrongly_declared", x=("FP32", [1, 2, 4], [1.0] * 8))
    (output,) = response.json()["outputs"]
    assert output["shape"] == [1, 2, 1, 4]
    metadata = requests.get(f"{box.url}/v2/models/wrongly_declared", timeout=30).json()
    assert metadata["outputs"][0]["shape"] == [-1, -1, -1, -1]
