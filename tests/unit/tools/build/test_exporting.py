"""Exporting PyTorch models to ONNX, where torch is installed; weights are random, because no hub can be reached."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from trireme_extensions.convert.onnx_graph import Graph
from trireme_tools.build import exporting
from trireme_tools.progress import Progress


@pytest.mark.filterwarnings("default")
def test_a_torchvision_model_becomes_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytorch = pytest.importorskip("torch", reason="torch is not installed: it is not part of the box")
    models = pytest.importorskip("torchvision", reason="torchvision is not installed").models
    # torch finds its downloaded weights here; these are random.
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    weights = models.get_model_weights("mobilenet_v3_small").DEFAULT
    checkpoint = tmp_path / "torch" / "hub" / "checkpoints" / weights.url.rpartition("/")[2]
    checkpoint.parent.mkdir(parents=True)
    pytorch.save(models.mobilenet_v3_small().state_dict(), checkpoint)
    progress = Progress(io.StringIO())
    path = exporting.export("torchvision:mobilenet_v3_small", tmp_path / "model.onnx", progress)
    graph = Graph.read(path)
    assert [(value.name, value.shape) for value in graph.inputs] == [("input", (-1, 3, 224, 224))]
    assert [(value.name, value.shape) for value in graph.outputs] == [("logits", (-1, 1000))]
