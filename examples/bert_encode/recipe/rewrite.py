"""The export's tensors made those of the reference's BERT; what lies between them stays as it is.

=================  ==================  =============================  =================
the export         INT64               here
=================  ==================  =============================  =================
input_ids          [b, s]              token_ids                      INT32 [b, 128]
attention_mask     [b, s]              attn_mask                      INT32 [b, 128]
token_type_ids     [b, s]              none: one sentence, zeros
last_hidden_state  [b, s, 384] FP32    output                         [b, 128, 384]
none                                   pooled_output                  [b, 384]
=================  ==================  =============================  =================
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

LENGTH, WIDTH = 128, 384
#: Below this a sum counts as nothing, and is not divided by.
LEAST = 1e-9


def rewrite(graph: Any) -> None:
    """Change ``graph`` in place."""
    nodes = [*widened(), *graph.node, *pooled()]
    rename(graph, "last_hidden_state", "output")
    replace(graph.node, nodes)
    zeros = np.zeros((1, LENGTH), np.int64)
    graph.initializer.append(numpy_helper.from_array(zeros, "token_type_ids"))
    graph.initializer.append(numpy_helper.from_array(np.array(LEAST, np.float32), "least"))
    integers = [("token_ids", (LENGTH,)), ("attn_mask", (LENGTH,))]
    floats = [("output", (LENGTH, WIDTH)), ("pooled_output", (WIDTH,))]
    replace(graph.input, [value(name, TensorProto.INT32, shape) for name, shape in integers])
    replace(graph.output, [value(name, TensorProto.FLOAT, shape) for name, shape in floats])


def widened() -> list[Any]:
    """INT32 of the caller to the INT64 of the export."""
    names = {"token_ids": "input_ids", "attn_mask": "attention_mask"}
    return [
        helper.make_node("Cast", [ours], [theirs], to=TensorProto.INT64) for ours, theirs in names.items()
    ]


def pooled() -> list[Any]:
    """The mean over the places that the mask has, of length 1; where it has none, zeros.

    It is what the weights were trained with. The reference's pooler, a layer of its own on the first
    place, has weights that these have not.
    """
    node = helper.make_node
    return [
        node("Cast", ["attn_mask"], ["pool_mask"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["pool_mask"], ["pool_column"], axes=[2]),
        node("Mul", ["output", "pool_column"], ["pool_kept"]),
        node("ReduceSum", ["pool_kept"], ["pool_sum"], axes=[1], keepdims=0),
        # A vector of length 1 is the same for the sum and for the mean.
        node("ReduceL2", ["pool_sum"], ["pool_length"], axes=[1], keepdims=1),
        node("Max", ["pool_length", "least"], ["pool_divisor"]),
        node("Div", ["pool_sum", "pool_divisor"], ["pooled_output"]),
    ]


def rename(graph: Any, old: str, new: str) -> None:
    """A value's name, wherever it is made or used."""
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == old:
                    names[place] = new


def replace(repeated: Any, values: list[Any]) -> None:
    del repeated[:]
    repeated.extend(values)


def value(name: str, kind: int, shape: tuple[int, ...]) -> Any:
    return helper.make_tensor_value_info(name, kind, ["batch_size", *shape])
