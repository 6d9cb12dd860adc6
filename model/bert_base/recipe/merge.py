"""Adapters into an encoder's ONNX graph, and a masked-language head behind it.

The file's matrices carry no names (``onnx::MatMul_1525``): each is found by the bias that the
following Add uses, which does. They are stored [in, out]; so are the adapters' products.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

Weights = dict[str, NDArray[np.float32]]

WORDS = "embeddings.word_embeddings.weight"
HIDDEN = "last_hidden_state"

#: The six matrices of a layer: the adapter's name, and that of the matrix's bias.
MATRICES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attended": "attention.output.dense",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
}


def merge(graph: GraphProto, trained: Weights) -> None:
    """Add ``down @ up`` to every matrix that has an adapter, and to the word embeddings.

    :raises ValueError: An adapter's matrix is not in the graph.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    matrices = _matrices(graph)
    _add(tensors[WORDS], trained["word_down"] @ trained["word_up"])
    for adapter in [name.removesuffix(".down") for name in trained if name.endswith(".down")]:
        _, layer, kind = adapter.split(".")
        bias = f"encoder.layer.{layer}.{MATRICES[kind]}.bias"
        if bias not in matrices:
            raise ValueError(f"the encoder has no matrix in front of {bias}")
        _add(tensors[matrices[bias]], trained[f"{adapter}.down"] @ trained[f"{adapter}.up"])


def add_head(graph: GraphProto, trained: Weights) -> None:
    """Dense, GELU, layer norm, and a decoder tied to the word embeddings: output ``logits`` [b, s, words]."""
    constants = {
        "head.transform": trained["transform.weight"].T,
        "head.transform.bias": trained["transform.bias"],
        "head.norm": trained["transform_norm.weight"],
        "head.norm.bias": trained["transform_norm.bias"],
        "head.bias": trained["output_bias"],
        "head.half": np.float32(0.5),
        "head.one": np.float32(1.0),
        "head.root": np.float32(np.sqrt(2.0)),
        "head.epsilon": np.float32(1e-12),
    }
    for name, value in constants.items():
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
    graph.node.extend([*_transform(), *_norm(), *_decoder()])
    words = len(trained["output_bias"])
    logits = helper.make_tensor_value_info(
        "logits", TensorProto.FLOAT, ["batch_size", "sequence_length", words]
    )
    del graph.output[:]
    graph.output.append(logits)


def _transform() -> list[NodeProto]:
    """Dense, then GELU by the error function: x / 2 * (1 + erf(x / sqrt(2)))."""
    return [
        helper.make_node("MatMul", [HIDDEN, "head.transform"], ["head.product"]),
        helper.make_node("Add", ["head.product", "head.transform.bias"], ["head.dense"]),
        helper.make_node("Div", ["head.dense", "head.root"], ["head.scaled"]),
        helper.make_node("Erf", ["head.scaled"], ["head.erf"]),
        helper.make_node("Add", ["head.erf", "head.one"], ["head.gate"]),
        helper.make_node("Mul", ["head.dense", "head.gate"], ["head.gated"]),
        helper.make_node("Mul", ["head.gated", "head.half"], ["head.gelu"]),
    ]


def _norm() -> list[NodeProto]:
    """Layer norm over the last axis, of operations that opset 11 has."""
    return [
        helper.make_node("ReduceMean", ["head.gelu"], ["head.mean"], axes=[-1]),
        helper.make_node("Sub", ["head.gelu", "head.mean"], ["head.centred"]),
        helper.make_node("Mul", ["head.centred", "head.centred"], ["head.squared"]),
        helper.make_node("ReduceMean", ["head.squared"], ["head.variance"], axes=[-1]),
        helper.make_node("Add", ["head.variance", "head.epsilon"], ["head.shifted"]),
        helper.make_node("Sqrt", ["head.shifted"], ["head.deviation"]),
        helper.make_node("Div", ["head.centred", "head.deviation"], ["head.unit"]),
        helper.make_node("Mul", ["head.unit", "head.norm"], ["head.stretched"]),
        helper.make_node("Add", ["head.stretched", "head.norm.bias"], ["head.hidden"]),
    ]


def _decoder() -> list[NodeProto]:
    """The transpose is a node, folded when the graph is loaded: the file holds the embeddings once."""
    return [
        helper.make_node("Transpose", [WORDS], ["head.words"], perm=[1, 0]),
        helper.make_node("MatMul", ["head.hidden", "head.words"], ["head.scores"]),
        helper.make_node("Add", ["head.scores", "head.bias"], ["logits"]),
    ]


def _matrices(graph: GraphProto) -> dict[str, str]:
    """The name of each matrix by the name of the bias that is added to its product."""
    products = {node.output[0]: node.input[1] for node in graph.node if node.op_type == "MatMul"}
    found = {}
    for node in graph.node:
        bias = next((name for name in node.input if name.endswith(".bias")), None)
        product = next((products[name] for name in node.input if name in products), None)
        if node.op_type == "Add" and bias and product:
            found[bias] = product
    return found


def _add(tensor: TensorProto, change: NDArray[np.float32]) -> None:
    value = numpy_helper.to_array(tensor)
    if value.shape != change.shape:
        raise ValueError(f"{tensor.name} is {value.shape}, its adapter {change.shape}")
    tensor.CopyFrom(numpy_helper.from_array((value + change).astype(np.float32), tensor.name))
