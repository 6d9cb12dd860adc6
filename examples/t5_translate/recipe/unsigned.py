"""int8 matrices as uint8 ones of the same meaning.

Where a processor has AVX2 and no VNNI, ONNX Runtime multiplies uint8 by int8 with an instruction that adds
two products in 16 bits and cuts off what is above: with weights over the whole of int8 the answers are
wrong, and no error says so. uint8 by uint8 has another, exact way. Moving the numbers and their zero point
by 128 changes no product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

SHIFT = 128


def unsigned(graph: Any) -> None:
    """Make the int8 right sides of the graph's ``MatMulInteger`` uint8, with their zero points."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMulInteger"]
    # Inputs are a, b, a's zero point, b's zero point.
    for name in {name for node in products for name in (node.input[1], node.input[3])}:
        tensor = weights[name]
        if tensor.data_type == TensorProto.INT8:
            moved = numpy_helper.to_array(tensor).astype(np.int16) + SHIFT
            tensor.CopyFrom(numpy_helper.from_array(moved.astype(np.uint8), name))
