"""EfficientNet-Lite0 as an ONNX graph, its batch normalisations folded into the convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]

SIDE, CLASSES = 224, 1000
#: The blocks: how many, the stride of the first, the factor by which each widens its input.
STAGES = ((1, 1, 1), (2, 2, 6), (2, 2, 6), (3, 2, 6), (3, 1, 6), (4, 2, 6), (1, 1, 6))
#: What batch normalisation adds to the variance.
EPSILON = 1e-3


def model(weights: dict[str, Array]) -> onnx.ModelProto:
    """``input`` [b, 3, 224, 224] to ``logits`` and ``probabilities`` [b, 1000]. Every weight is used."""
    return Graph(weights).model()


class Graph:
    """The graph, from its input on. ``value`` is the name of what was computed last."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self._weights = {name: w for name, w in weights.items() if not name.endswith("num_batches_tracked")}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        for name, limit in (("zero", 0), ("six", 6)):
            self.constant(name, np.array(limit))
        self.value = "input"

    def model(self) -> onnx.ModelProto:
        self.convolution("_conv_stem", "_bn0", stride=2)
        index = 0
        for count, stride, widening in STAGES:
            for place in range(count):
                self.block(f"_blocks.{index}", stride if place == 0 else 1, widening, skip=place > 0)
                index += 1
        self.convolution("_conv_head", "_bn1")
        self.node("GlobalAveragePool", "pooled")
        self.node("Flatten", "features")
        weights = [
            self.constant(f"fc.{name}", self._weights.pop(f"_fc.{name}")) for name in ("weight", "bias")
        ]
        self.node("Gemm", "logits", *weights, transB=1)
        self.node("Softmax", "probabilities", axis=1)
        if self._weights:
            raise ValueError(f"weights that no layer uses: {', '.join(sorted(self._weights))}")
        return self.checked()

    def block(self, name: str, stride: int, widening: int, skip: bool) -> None:
        """Widen, filter each channel by itself, narrow; ``skip``: and add the input."""
        entry = self.value
        if widening > 1:
            self.convolution(f"{name}._expand_conv", f"{name}._bn0")
        self.convolution(f"{name}._depthwise_conv", f"{name}._bn1", stride, each=True)
        self.convolution(f"{name}._project_conv", f"{name}._bn2", bounded=False)
        if skip:
            self.node("Add", f"{name}.sum", entry)

    def convolution(
        self, name: str, normalisation: str, stride: int = 1, each: bool = False, bounded: bool = True
    ) -> None:
        """With its normalisation folded in, padded as TensorFlow does. ``bounded``: a ReLU6 follows."""
        scale, bias, mean, variance = (
            self._weights.pop(f"{normalisation}.{part}").astype(np.float64)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = scale / np.sqrt(variance + EPSILON)
        kernel = self._weights.pop(f"{name}.weight") * factor[:, None, None, None]
        self.node(
            "Conv",
            f"{name}.out",
            self.constant(f"{name}.kernel", kernel),
            self.constant(f"{name}.bias", bias - mean * factor),
            auto_pad="SAME_UPPER",
            strides=[stride, stride],
            group=len(kernel) if each else 1,
        )
        if bounded:
            self.node("Clip", f"{name}.bounded", "zero", "six")

    def node(self, operator: str, output: str, *more: str, **options: Any) -> None:
        """A node that takes the last value, and ``more``."""
        self.nodes.append(helper.make_node(operator, [self.value, *more], [output], **options))
        self.value = output

    def constant(self, name: str, value: Array) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def checked(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "efficientnet_lite0",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["b", 3, SIDE, SIDE])],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", CLASSES])
                for name in ("logits", "probabilities")
            ],
            self.constants,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(made, full_check=True)
        return made
