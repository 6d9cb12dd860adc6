"""A client's samples are answered with what was built and with its source, and the same answers counted."""

from __future__ import annotations

import json
from pathlib import Path

from sm.tools.build.graph_runner import session
from sm.tools.build.samples import InProcess, count_equal_answers
from tests.support.onnx_graphs import one_size, plus_one

CLIENT = """
import numpy as np
from sm.client.base import TensorClient, TensorPayload

class Tiny(TensorClient):
    model, payload = "tiny", TensorPayload
    def preprocess(self, payload):
        return {"x": np.asarray(payload.tensor, np.float32)}
    def postprocess(self, outputs, payload):
        return {"sum": float(outputs["y"].sum())}
"""


def client(folder: Path) -> Path:
    home = folder / "clients" / "tiny"
    (home / "sample").mkdir(parents=True)
    (home / "client.py").write_text(CLIENT)
    (home / "sample" / "payload.json").write_text(json.dumps({"tensor": [1, 2, 3, 4]}))
    return home


def test_the_same_graph_answers_alike_and_another_does_not(tmp_path: Path) -> None:
    graph, home = plus_one(tmp_path / "model.onnx"), client(tmp_path)
    model = InProcess(graph, session(graph.path))
    assert count_equal_answers(home, tmp_path, model, model) == (1, 1)
    other = InProcess(graph, session(one_size(tmp_path / "other.onnx").path))
    assert count_equal_answers(home, tmp_path, model, other) == (0, 1)


def test_a_model_without_a_client_or_samples_has_none(tmp_path: Path) -> None:
    graph = plus_one(tmp_path / "model.onnx")
    model = InProcess(graph, session(graph.path))
    assert count_equal_answers(tmp_path / "nobody", tmp_path, model, model) is None
