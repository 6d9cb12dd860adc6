"""Exporting PyTorch models to ONNX, where torch is installed; weights are random, because no hub can be reached."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from sm.build.accuracy import Comparison
from sm.build.onnx_graph import Graph
from sm.commands.progress import Progress
from sm.errors import CommandError
from trireme_tools.build import exporting

PROGRESS = Progress(io.StringIO())


def import_torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed: it is not part of the box")


@pytest.mark.filterwarnings("default")
def test_a_torchvision_model_becomes_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytorch = import_torch()
    models = pytest.importorskip("torchvision", reason="torchvision is not installed").models
    # torch finds its downloaded weights here; these are random.
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    weights = models.get_model_weights("mobilenet_v3_small").DEFAULT
    checkpoint = tmp_path / "torch" / "hub" / "checkpoints" / weights.url.rpartition("/")[2]
    checkpoint.parent.mkdir(parents=True)
    pytorch.save(models.mobilenet_v3_small().state_dict(), checkpoint)
    path = exporting.export("torchvision:mobilenet_v3_small", tmp_path / "model.onnx", PROGRESS)
    graph = Graph.read(path)
    assert [(value.name, value.shape) for value in graph.inputs] == [("input", (-1, 3, 224, 224))]
    assert [(value.name, value.shape) for value in graph.outputs] == [("logits", (-1, 1000))]


@pytest.mark.filterwarnings("default")
def test_an_export_that_differs_from_its_module_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    pytorch = import_torch()
    module = pytorch.nn.Linear(4, 4)
    changed_module = exporting.Module(
        exporting._wrap(module, lambda inner, given: inner(*given) + given[0].shape[0]),
        {"x": pytorch.rand(2, 4)},
        "y",
        {0: pytorch.export.Dim("batch")},
    )
    # The module changes after the export, so that the two differ.
    exporting._export("linear", changed_module, tmp_path / "model.onnx")
    with pytorch.no_grad():
        module.weight += 1
    with pytest.raises(CommandError, match="y "):
        Comparison(Graph.read(tmp_path / "model.onnx"), 8).against(tmp_path / "model.onnx", changed_module)
