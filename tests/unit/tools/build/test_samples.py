"""The answers of a client on two graphs are compared."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.onnx_graphs import batch_sum, plus_one
from trireme_extensions.convert.graph_runner import session
from trireme_tools.build.samples import InProcess, count_equal_answers

CLIENT = """
import numpy as np
from sm.client import TensorClient, TensorPayload

class Tiny(TensorClient):
    model, payload = "tiny", TensorPayload
    def preprocess(self, payload):
        return {"x": np.asarray(payload.tensor, np.float32)}
    def postprocess(self, outputs, payload):
        return {"sum": float(outputs["y"].sum())}
"""


def test_equal_answers_of_two_graphs_are_counted(tmp_path: Path) -> None:
    graph, client_folder = plus_one(tmp_path / "model.onnx"), tmp_path / "clients" / "tiny"
    (client_folder / "sample").mkdir(parents=True)
    (client_folder / "client.py").write_text(CLIENT)
    (client_folder / "sample" / "payload.json").write_text(json.dumps({"tensor": [1, 2, 3, 4]}))
    model = InProcess(graph, session(graph.path))
    assert count_equal_answers(client_folder, tmp_path, model, model) == (1, 1)
    other_model = InProcess(graph, session(batch_sum(tmp_path / "other.onnx").path))
    assert count_equal_answers(client_folder, tmp_path, model, other_model) == (0, 1)
    assert count_equal_answers(tmp_path / "nobody", tmp_path, model, model) is None
