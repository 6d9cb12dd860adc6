"""A graph's precision is converted for real."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from sm.errors import CommandError
from tests.support.onnx_graphs import matrix_product
from trireme_extensions.convert.targets import convert_precision


def test_fp16_has_16_bit_weights_and_the_same_inputs_and_outputs(tmp_path: Path) -> None:
    graph = matrix_product(tmp_path / "m.onnx")
    assert convert_precision(graph, "fp32", tmp_path / "out.onnx") is graph
    half = convert_precision(graph, "fp16", tmp_path / "out.onnx")
    assert {weight.data_type for weight in onnx.load(half.path).graph.initializer} == {TensorProto.FLOAT16}
    assert (half.inputs, half.outputs) == (graph.inputs, graph.outputs)


def test_bfloat16_that_the_graph_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--no-strongly-typed"):
        convert_precision(matrix_product(tmp_path / "m.onnx"), "bf16", tmp_path / "out.onnx")
