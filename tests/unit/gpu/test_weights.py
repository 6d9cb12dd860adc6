"""Graphs are packed without their large weights, which are restored later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bench.gpu import weights


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A file with a convolution of large weights and a small bias."""
    generator = np.random.default_rng(1)
    large = generator.standard_normal((64, 32, 3, 3)).astype(np.float32)
    small = generator.standard_normal(64).astype(np.float32)
    initializers = [numpy_helper.from_array(large, "large"), numpy_helper.from_array(small, "small")]
    describe_value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Conv", ["x", "large", "small"], ["y"])
    shapes: list[list[str | int | None]] = [["b", 32, 8, 8], ["b", 64, 6, 6]]
    values = [
        describe_value(name, onnx.TensorProto.FLOAT, shape) for name, shape in zip("xy", shapes, strict=True)
    ]
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph([node], "g", values[:1], values[1:], initializers)),
        tmp_path / "a.onnx",
    )
    return tmp_path / "a.onnx"


def read_weights(path: Path) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    return {weight.name: numpy_helper.to_array(weight) for weight in onnx.load(path).graph.initializer}


def test_int8_weights_are_restored_within_half_a_rounding_step(graph: Path, tmp_path: Path) -> None:
    weights.pack(graph, tmp_path / "packed", "int8")
    assert weights.restore(tmp_path / "packed", tmp_path / "b.onnx") == "int8"
    before, after = read_weights(graph), read_weights(tmp_path / "b.onnx")
    rounding_step = np.abs(before["large"]).max(axis=(1, 2, 3), keepdims=True) / 127
    assert (np.abs(before["large"] - after["large"]) <= rounding_step * 0.501).all()
    assert (before["small"] == after["small"]).all()


def test_random_weights_are_the_same_on_every_machine(graph: Path, tmp_path: Path) -> None:
    weights.pack(graph, tmp_path / "packed", "random")
    weights.restore(tmp_path / "packed", tmp_path / "b.onnx")
    weights.restore(tmp_path / "packed", tmp_path / "c.onnx")
    assert (tmp_path / "b.onnx").read_bytes() == (tmp_path / "c.onnx").read_bytes()
    expected = [0.03096126, 0.00388799, 0.00694251]
    assert np.allclose(read_weights(tmp_path / "b.onnx")["large"].reshape(-1)[:3], expected, atol=1e-6)
