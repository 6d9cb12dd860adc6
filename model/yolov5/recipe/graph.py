"""YOLOv5 (layout of version 6) as an ONNX graph, written node by node.

Widths and depths follow from the shapes of the weights, so that the n, s, m, l and x sizes all fit.
Every tensor of the checkpoint is used exactly once, or the build fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from .checkpoint import Checkpoint

Array = NDArray[Any]

#: Pixels of one side of the input.
SIZE = 640
#: Old enough for every runtime in use, new enough to be converted by none.
OPSET, IR_VERSION = 17, 8
#: Layer by layer: what it is and which earlier outputs it takes (-1: the one before).
LAYERS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("stem", (-1,)),
    ("down", (-1,)),
    ("residual", (-1,)),
    ("down", (-1,)),
    ("residual", (-1,)),
    ("down", (-1,)),
    ("residual", (-1,)),
    ("down", (-1,)),
    ("residual", (-1,)),
    ("pyramid", (-1,)),
    ("same", (-1,)),
    ("double", (-1,)),
    ("join", (-1, 6)),
    ("plain", (-1,)),
    ("same", (-1,)),
    ("double", (-1,)),
    ("join", (-1, 4)),
    ("plain", (-1,)),
    ("down", (-1,)),
    ("join", (-1, 14)),
    ("plain", (-1,)),
    ("down", (-1,)),
    ("join", (-1, 10)),
    ("plain", (-1,)),
    ("detect", (17, 20, 23)),
)
#: Input pixels per cell of each of the three grids.
STRIDES = (8, 16, 32)
#: Boxes per cell, and in all: 25,200.
ANCHORS = 3
BOXES = sum(ANCHORS * (SIZE // stride) ** 2 for stride in STRIDES)


class WrongWeights(ValueError):
    """The weights are not those of this network."""


class Weights:
    """The checkpoint's tensors, each to be taken once."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self.left = dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self.left

    def take(self, name: str) -> Array:
        try:
            return self.left.pop(name)
        except KeyError:
            raise WrongWeights(f"the checkpoint has no {name}") from None

    def check_all_taken(self) -> None:
        if self.left:
            raise WrongWeights(f"the network has no place for {', '.join(sorted(self.left))}")


class Graph:
    """Nodes and constants as they are added; every method gives the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    def add(self, kind: str, inputs: Iterable[str], outputs: int = 1, **attributes: Any) -> Any:
        """The output's name, or a list of them where there are several."""
        stem = f"{kind}_{len(self.nodes)}"
        names = [stem] if outputs == 1 else [f"{stem}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=stem, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Array) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = value
        return name

    def numbers(self, *values: float) -> str:
        return self.constant(np.array(values, np.float32))

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))


class Network:
    """The layers, by the names that the checkpoint gives their weights."""

    def __init__(self, weights: Weights, epsilon: float) -> None:
        self.weights, self.epsilon = weights, epsilon
        self.graph = Graph()

    def build(self, images: str) -> str:
        """From ``images`` [b, 3, 640, 640] to the rows [b, 25200, 5 + classes]."""
        outputs: list[str] = []
        for index, (kind, sources) in enumerate(LAYERS):
            inputs = [images if index == 0 else outputs[source] for source in sources]
            outputs.append(self.layer(kind, f"model.{index}", inputs))
        return outputs[-1]

    def layer(self, kind: str, path: str, inputs: list[str]) -> str:
        first = inputs[0]
        if kind == "stem":
            return self.convolution(path, first, stride=2, padding=2)
        if kind in ("down", "same"):
            return self.convolution(path, first, stride=2 if kind == "down" else 1)
        if kind in ("residual", "plain"):
            return self.cross_stage(path, first, residual=kind == "residual")
        if kind == "pyramid":
            return self.pyramid(path, first)
        if kind == "double":
            return self.double(first)
        return self.concatenated(inputs) if kind == "join" else self.detect(path, inputs)

    def convolution(self, path: str, x: str, stride: int = 1, padding: int | None = None) -> str:
        """Convolution with its batch normalisation folded in, then SiLU."""
        kernel, bias = self.folded(path)
        if padding is None:
            padding = kernel.shape[-1] // 2
        x = self.graph.add(
            "Conv",
            [x, self.graph.constant(kernel), self.graph.constant(bias)],
            strides=[stride, stride],
            pads=[padding] * 4,
        )
        return str(self.graph.add("Mul", [x, self.graph.add("Sigmoid", [x])]))

    def folded(self, path: str) -> tuple[Array, Array]:
        """Kernel and bias of ``path``; the arithmetic is in float64, the result in float32."""
        kernel = self.weights.take(f"{path}.conv.weight").astype(np.float64)
        scale, shift, mean, variance = (
            self.weights.take(f"{path}.bn.{name}").astype(np.float64)
            for name in ("weight", "bias", "running_mean", "running_var")
        )
        self.weights.take(f"{path}.bn.num_batches_tracked")  # counts training steps, of no use here
        factor = scale / np.sqrt(variance + self.epsilon)
        folded = kernel * factor[:, None, None, None]
        return folded.astype(np.float32), (shift - mean * factor).astype(np.float32)

    def cross_stage(self, path: str, x: str, *, residual: bool) -> str:
        """C3: one half through the bottlenecks, the other past them, joined."""
        through, past = self.convolution(f"{path}.cv1", x), self.convolution(f"{path}.cv2", x)
        depth = 0
        while f"{path}.m.{depth}.cv1.conv.weight" in self.weights:
            before = through
            through = self.convolution(f"{path}.m.{depth}.cv1", through)
            through = self.convolution(f"{path}.m.{depth}.cv2", through)
            through = self.graph.add("Add", [before, through]) if residual else through
            depth += 1
        return self.convolution(f"{path}.cv3", self.concatenated([through, past]))

    def pyramid(self, path: str, x: str) -> str:
        """SPPF: three poolings of 5x5 in a row, all of them kept."""
        levels = [self.convolution(f"{path}.cv1", x)]
        for _ in range(3):
            levels.append(
                self.graph.add("MaxPool", levels[-1:], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4)
            )
        return self.convolution(f"{path}.cv2", self.concatenated(levels))

    def double(self, x: str) -> str:
        """Twice as wide and high, each value repeated."""
        return str(
            self.graph.add(
                "Resize",
                [x, "", self.graph.numbers(1, 1, 2, 2)],
                mode="nearest",
                nearest_mode="floor",
                coordinate_transformation_mode="asymmetric",
            )
        )

    def concatenated(self, inputs: list[str]) -> str:
        return str(self.graph.add("Concat", inputs, axis=1))

    def detect(self, path: str, inputs: list[str]) -> str:
        """Each cell's three boxes in input pixels (centre, width, height), objectness and classes."""
        anchors = self.weights.take(f"{path}.anchors") * np.array(STRIDES, np.float32)[:, None, None]
        check_equal(self.weights.take(f"{path}.anchor_grid").reshape(anchors.shape), anchors)
        levels = [
            self.boxes(f"{path}.m.{level}", x, STRIDES[level], anchors[level])
            for level, x in enumerate(inputs)
        ]
        return self.concatenated(levels)

    def boxes(self, path: str, x: str, stride: int, anchors: Array) -> str:
        """One grid: [b, 3 * (5 + classes), side, side] to [b, 3 * side * side, 5 + classes]."""
        graph, side, count = self.graph, SIZE // stride, ANCHORS
        kernel, bias = self.weights.take(f"{path}.weight"), self.weights.take(f"{path}.bias")
        width = len(bias) // count
        x = graph.add("Conv", [x, graph.constant(kernel), graph.constant(bias)])
        # The cells stay the last axis until the end: every step then runs over contiguous memory.
        x = graph.add("Sigmoid", [graph.add("Reshape", [x, graph.integers(0, count, width, side * side)])])
        centre, extent, scores = graph.add("Split", [x, graph.integers(2, 2, width - 4)], outputs=3, axis=2)
        centre = graph.add("Mul", [centre, graph.numbers(2 * stride)])
        centre = graph.add("Add", [centre, graph.constant(cells(side, stride))])
        extent = graph.add("Mul", [extent, extent])
        extent = graph.add("Mul", [extent, graph.constant(4 * anchors[:, :, None])])
        x = graph.add("Concat", [centre, extent, scores], axis=2)
        x = graph.add("Transpose", [x], perm=[0, 1, 3, 2])
        return str(graph.add("Reshape", [x, graph.integers(0, count * side * side, width)]))


def cells(side: int, stride: int) -> Array:
    """Where each cell's centre may lie at the least: x and y in input pixels, float32 [2, side * side]."""
    y, x = np.divmod(np.arange(side * side), side)
    places: Array = (np.stack([x, y]) - 0.5) * stride
    return places.astype(np.float32)


def check_equal(found: Array, expected: Array) -> None:
    if not np.array_equal(found, expected):
        raise WrongWeights("the checkpoint's two copies of the anchors differ")


def model_of(checkpoint: Checkpoint, notes: Mapping[str, str]) -> onnx.ModelProto:
    """The whole model; ``notes`` become its metadata. :class:`WrongWeights` if the weights do not fit."""
    weights = Weights(checkpoint.tensors)
    network = Network(weights, checkpoint.epsilon)
    rows = network.build("images")
    weights.check_all_taken()
    network.graph.nodes.append(helper.make_node("Identity", [rows], ["output0"]))
    graph = helper.make_graph(
        network.graph.nodes,
        "yolov5",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])],
        [
            helper.make_tensor_value_info(
                "output0", TensorProto.FLOAT, ["batch", BOXES, 5 + len(checkpoint.labels)]
            )
        ],
        [numpy_helper.from_array(value, name) for name, value in network.graph.constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    helper.set_model_props(model, dict(notes))
    onnx.checker.check_model(model, full_check=True)
    return model
