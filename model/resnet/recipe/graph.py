"""Keras layers to an ONNX graph: channels first, normalisation folded, padding merged into what it pads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from .layers_model import LayersModel

OPSET, IR_VERSION = 17, 8
SIDE, CLASSES = 224, 1000

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Layer:
    """One Keras layer; ``inputs`` names the layers whose outputs it takes."""

    name: str
    config: dict[str, Any]
    inputs: list[str]


class Translation:
    """One model's translation. A layer or an option it does not know is a ValueError, never skipped."""

    def __init__(self, model: LayersModel) -> None:
        self.source = model
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        #: The ONNX value that a Keras layer's output became.
        self.values: dict[str, str] = {}
        #: Zero padding that the next layer takes over: top, left, bottom, right.
        self.padding: dict[str, list[int]] = {}
        #: Convolutions that wait for their batch normalisation: input, kernel [out, in, h, w], bias, options.
        self.waiting: dict[str, tuple[str, Floats, Floats, dict[str, list[int]]]] = {}

    def model(self) -> onnx.ModelProto:
        """The checked ONNX model."""
        for layer in self.source.layers:
            translate = getattr(self, f"_{layer['class_name'].lower()}", None)
            if translate is None:
                raise ValueError(
                    f"the layer {layer['name']} is a {layer['class_name']}, which is unknown here"
                )
            translate(Layer(layer["name"], layer["config"], _inputs(layer)))
        self.source.check_all_taken()
        if self.waiting or self.padding:
            raise ValueError(f"layers without a successor: {[*self.waiting, *self.padding]}")
        return self._assembled()

    def _assembled(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "resnet50",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["b", 3, SIDE, SIDE])],
            [
                helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", CLASSES])
                for n in ("logits", "probs")
            ],
            self.weights,
        )
        imports = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        return model

    def _inputlayer(self, layer: Layer) -> None:
        _expect(layer, batch_input_shape=[None, SIDE, SIDE, 3])
        self.values[layer.name] = "input"

    def _zeropadding2d(self, layer: Layer) -> None:
        (top, bottom), (left, right) = layer.config["padding"]
        self.values[layer.name] = self.values[layer.inputs[0]]
        self.padding[layer.name] = [top, left, bottom, right]

    def _conv2d(self, layer: Layer) -> None:
        _expect(layer, activation="linear", use_bias=True, dilation_rate=[1, 1])
        _expect(layer, data_format="channels_last")
        kernel, bias = self.source.take(f"{layer.name}/kernel"), self.source.take(f"{layer.name}/bias")
        options = {"strides": layer.config["strides"], "pads": self._pads(layer)}
        self.waiting[layer.name] = (self.values[layer.inputs[0]], kernel.transpose(3, 2, 0, 1), bias, options)

    def _pads(self, layer: Layer) -> list[int]:
        padding = self.padding.pop(layer.inputs[0], [0, 0, 0, 0])
        if layer.config["padding"] == "valid":
            return padding
        sizes = layer.config["kernel_size"]
        if layer.config["strides"] != [1, 1] or any(size % 2 == 0 for size in sizes) or any(padding):
            raise ValueError(f"{layer.name}: padding 'same' is only known for odd kernels with stride 1")
        return [size // 2 for size in (*sizes, *sizes)]

    def _batchnormalization(self, layer: Layer) -> None:
        """Fold into the convolution before it, in float64."""
        _expect(layer, axis=[3], center=True, scale=True)
        value, kernel, bias, options = self.waiting.pop(layer.inputs[0])
        gamma, beta, mean, variance = (
            self.source.take(f"{layer.name}/{part}").astype(np.float64)
            for part in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        factor = gamma / np.sqrt(variance + layer.config["epsilon"])
        weights = [
            self._weight(f"{layer.name}.kernel", kernel * factor[:, None, None, None]),
            self._weight(f"{layer.name}.bias", (bias - mean) * factor + beta),
        ]
        self.values[layer.name] = self._node("Conv", layer.name, [value, *weights], **options)

    def _activation(self, layer: Layer) -> None:
        _expect(layer, activation="relu")
        self.values[layer.name] = self._node("Relu", layer.name, [self.values[layer.inputs[0]]])

    def _maxpooling2d(self, layer: Layer) -> None:
        """Zeros around what a ReLU gave change no maximum, so they may be the pool's own padding."""
        _expect(layer, padding="valid", data_format="channels_last")
        options = {"kernel_shape": layer.config["pool_size"], "strides": layer.config["strides"]}
        pads = self.padding.pop(layer.inputs[0], [0, 0, 0, 0])
        self.values[layer.name] = self._node(
            "MaxPool", layer.name, [self.values[layer.inputs[0]]], pads=pads, **options
        )

    def _add(self, layer: Layer) -> None:
        self.values[layer.name] = self._node("Add", layer.name, [self.values[each] for each in layer.inputs])

    def _globalaveragepooling2d(self, layer: Layer) -> None:
        pooled = self._node("GlobalAveragePool", f"{layer.name}.pooled", [self.values[layer.inputs[0]]])
        self.values[layer.name] = self._node("Flatten", layer.name, [pooled])

    def _dense(self, layer: Layer) -> None:
        _expect(layer, activation="softmax", units=CLASSES, use_bias=True)
        weights = [
            self._weight(f"{layer.name}.{part}", self.source.take(f"{layer.name}/{part}"))
            for part in ("kernel", "bias")
        ]
        self._node("Gemm", "logits", [self.values[layer.inputs[0]], *weights])
        self.values[layer.name] = self._node("Softmax", "probs", ["logits"], axis=1)

    def _node(self, operator: str, output: str, inputs: list[str], **options: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], **options))
        return output

    def _weight(self, name: str, value: NDArray[Any]) -> str:
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name))
        return name


def _inputs(layer: dict[str, Any]) -> list[str]:
    """The names of the layers whose outputs a layer takes."""
    return [node[0] for node in layer["inbound_nodes"][0]] if layer["inbound_nodes"] else []


def _expect(layer: Layer, **expected: Any) -> None:
    for option, value in expected.items():
        if layer.config[option] != value:
            raise ValueError(
                f"{layer.name} has {option}={layer.config[option]!r}; only {value!r} is known here"
            )
