"""Which activation a graph ends in, so that a task does not apply another one to its scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner

from sm.errors import CommandError

#: Operators that leave scores as they are, or only move or round them.
PASSES = {
    *("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten", "Dropout", "Clip"),
    *("QuantizeLinear", "DequantizeLinear", "Expand", "Slice", "Gather"),
}
SOFTMAX, SIGMOID, LOG_SOFTMAX = "Softmax", "Sigmoid", "LogSoftmax"
#: The activation that such scores still need. A softmax of logarithms of probabilities is the probabilities.
REMAINING = {SOFTMAX: "none", SIGMOID: "none", LOG_SOFTMAX: "softmax"}


def last_activation(path: Path) -> dict[str, str]:
    """Return the activation that makes each output, by the output's name; empty for one that has none.

    Raises:
        CommandError: The file is not an ONNX model.
    """
    try:
        model = onnx.inliner.inline_local_functions(onnx.load(path, load_external_data=False))
    except Exception as error:  # protobuf's own classes differ between its implementations
        raise CommandError(f"{path} is not an ONNX model: {error}.") from error
    return {value.name: _activation(value.name, _producers(model.graph, {})) for value in model.graph.output}


def _producers(graph: Any, outer: Mapping[str, Any]) -> dict[str, Any]:
    return {**outer, **{name: node for node in graph.node for name in node.output}}


def _activation(name: str, producers: Mapping[str, Any]) -> str:
    """Return the activation that makes a value; empty if none does."""
    node = producers.get(name)
    while node is not None and node.op_type in PASSES:
        node = producers.get(node.input[0])
    if node is None:
        return ""
    if node.op_type in REMAINING:
        return str(node.op_type)
    if node.op_type == "Log":
        return LOG_SOFTMAX if _activation(node.input[0], producers) == SOFTMAX else ""
    if node.op_type == "Div":
        # A softmax in parts: powers, divided by their sum.
        divisor = producers.get(node.input[1])
        is_share = (
            divisor is not None and divisor.op_type == "ReduceSum" and divisor.input[0] == node.input[0]
        )
        return SOFTMAX if is_share else ""
    if node.op_type == "If":
        place = [*node.output].index(name) if name in node.output else 0
        ends = {
            _activation(attribute.g.output[place].name, _producers(attribute.g, producers))
            for attribute in node.attribute
        }
        return ends.pop() if len(ends) == 1 else ""
    return ""
