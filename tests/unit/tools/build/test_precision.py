"""Precision is put into the graph: convert_precision and quantized for real, and run by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from sm.errors import StartError
from sm.tools.build.graph_runner import session
from sm.tools.build.precision import convert_precision
from tests.support.onnx_graphs import plus_one, product


def types(path: Path) -> set[int]:
    return {weight.data_type for weight in onnx.load(path).graph.initializer}


def test_fp32_is_the_graph_itself(tmp_path: Path) -> None:
    graph = plus_one(tmp_path / "m.onnx")
    assert convert_precision(graph, "fp32", None, tmp_path / "out.onnx") is graph


def test_fp16_has_its_weights_in_16_bits_and_the_same_inputs_and_outputs(tmp_path: Path) -> None:
    graph = product(tmp_path / "m.onnx")
    half = convert_precision(graph, "fp16", None, tmp_path / "out.onnx")
    assert types(half.path) == {TensorProto.FLOAT16}
    assert (half.inputs, half.outputs) == (graph.inputs, graph.outputs)


def test_int8_is_calibrated_with_the_folder_and_close(tmp_path: Path) -> None:
    graph, folder = product(tmp_path / "m.onnx"), tmp_path / "typical"
    folder.mkdir()
    batch = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    np.save(folder / "0.npy", batch)
    np.savez(folder / "1.npz", x=batch)
    small = convert_precision(graph, "int8", folder, tmp_path / "out.onnx")
    operators = [node.op_type for node in onnx.load(small.path).graph.node]
    assert "QuantizeLinear" in operators
    assert TensorProto.INT8 in types(small.path)
    (exact,), (rough,) = (
        session(each.path, optimized=False).run(["y"], {"x": batch}) for each in (graph, small)
    )
    assert 0 < np.abs(exact - rough).max() < 0.1


@pytest.mark.parametrize(
    ("precision", "folder", "sentence"),
    [
        ("int8", None, "--precision int8 and --calibration FOLDER go together"),
        ("fp16", ".", "--precision int8 and --calibration FOLDER go together"),
        ("int8", "empty", r"has no \*.npz or \*.npy to calibrate with: put some hundred typical inputs"),
        ("int8", "wrong", "0.npz has z; the model takes x"),
        ("bf16", None, "has no bfloat16 in it.*: export it from PyTorch in bfloat16, or with TensorRT 10"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(
    tmp_path: Path, precision: str, folder: str | None, sentence: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "wrong").mkdir()
    np.savez(tmp_path / "wrong" / "0.npz", z=np.zeros((1, 4), np.float32))
    with pytest.raises(StartError, match=sentence):
        convert_precision(
            product(tmp_path / "m.onnx"),
            precision,  # type: ignore[arg-type]
            tmp_path / folder if folder else None,
            tmp_path / "out.onnx",
        )
