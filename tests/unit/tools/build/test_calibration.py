"""A graph is quantized for TensorRT for real, and run by ONNX Runtime."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from sm.errors import CommandError
from tests.support.onnx_graphs import matrix_product, write_graph
from trireme_extensions.convert.build_request import BuildRequest
from trireme_extensions.convert.graph_runner import session
from trireme_extensions.convert.onnx_graph import Graph
from trireme_tools.desk_builder import DeskBuilder
from trireme_tools.progress import Progress


def convert(graph: Graph, precision: Any, calibration: Path | None) -> Graph:
    folder = graph.path.parent
    builder = DeskBuilder(folder, folder, Progress(io.StringIO()))
    request = BuildRequest("m", "tensorrt", folder, precision=precision, calibration=calibration)
    return builder.convert(request, graph, folder)


GEMM_WITH_BIAS = """(float[b,4] x) => (float[b,3] y)
    <float[4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[3] c = {1, 2, 3}> { y = Gemm(x, w, c) }"""
CONV_WITH_BIAS = """(float[b,1,4] x) => (float[b,2,4] y)
    <float[2,1,1] w = {1, 2}, float[2] c = {1, 2}> { y = Conv(x, w, c) }"""


@pytest.mark.parametrize(
    ("text", "shape"), [(GEMM_WITH_BIAS, (16, 4)), (CONV_WITH_BIAS, (16, 1, 4))], ids=["Gemm", "Conv"]
)
def test_int8_is_close_to_fp32_and_dequantizes_no_int32_bias(tmp_path: Path, text: str, shape: Any) -> None:
    graph, folder = write_graph(tmp_path / "m.onnx", text), tmp_path / "typical"
    folder.mkdir()
    batch = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.save(folder / "0.npy", batch)
    np.savez(folder / "1.npz", x=batch)
    quantized = convert(graph, "int8", folder)
    loaded = onnx.load(quantized.path).graph
    types = {weight.name: weight.data_type for weight in loaded.initializer}
    read = [name for node in loaded.node if node.op_type == "DequantizeLinear" for name in node.input]
    assert read
    assert TensorProto.INT8 in types.values()
    assert TensorProto.INT32 not in {types.get(name) for name in read}
    assert types["c"] == TensorProto.FLOAT
    (exact,), (approximate,) = (
        session(variant.path, optimized=False).run(["y"], {"x": batch}) for variant in (graph, quantized)
    )
    assert np.abs(exact - approximate).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("precision", "folder", "named"),
    [
        ("int8", None, "--calibration FOLDER"),
        ("fp16", ".", "--calibration FOLDER"),
        ("int8", "empty", "empty"),
        ("int8", "wrong", "0.npz has z; .* x"),
    ],
)
def test_inputs_that_do_not_fit_the_graph_or_the_precision_are_refused(
    tmp_path: Path, precision: Any, folder: str | None, named: str
) -> None:
    for name in ("empty", "wrong"):
        (tmp_path / name).mkdir()
    np.savez(tmp_path / "wrong" / "0.npz", z=np.zeros((1, 4), np.float32))
    graph, calibration = matrix_product(tmp_path / "m.onnx"), tmp_path / folder if folder else None
    with pytest.raises(CommandError, match=named):
        convert(graph, precision, calibration)
