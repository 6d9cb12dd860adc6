"""Let a model take a picture's bytes: the scaling that ``preprocess.json`` describes moves into the graph.

Triton gets a quarter of the bytes, and the router converts nothing. Sizes, axes and channels keep their
order: the caller sends the same numbers before scaling, as UINT8 instead of FP32.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper

from sm.client.preprocessing import Normalisation
from sm.commands.build.onnx_graph import Graph, Value
from sm.errors import CommandError

#: The prefix of the new nodes' names, and the name of the scaled picture.
PREFIX, SCALED = "pixels", "pixels_scaled"


def add_scaling(graph: Graph, description: Path, out: Path) -> Graph:
    """Write a graph that takes bytes to ``out``; return the same graph if it takes bytes already.

    Args:
        graph: A graph with one picture among its inputs.
        description: The model's ``preprocess.json``.
        out: The file to write.

    Raises:
        CommandError: The graph does not take exactly one picture.
    """
    normalisation = Normalisation.read(description)
    pictures = _pictures(graph, normalisation.layout, "TYPE_FP32")
    if not pictures and len(_pictures(graph, normalisation.layout, "TYPE_UINT8")) == 1:
        return graph
    if len(pictures) != 1:
        raise CommandError(
            f"{graph.path} has {len(pictures)} inputs that are a picture (FP32, {normalisation.layout}, "
            "three channels); --uint8 is for a graph with one."
        )
    (picture,) = pictures
    model = onnx.load(graph.path)
    for node in model.graph.node:
        node.input[:] = [SCALED if name == picture.name else name for name in node.input]
    nodes, weights = _scaling(picture.name, normalisation)
    for index, node in enumerate(nodes):
        model.graph.node.insert(index, node)
    model.graph.initializer.extend(weights)
    (declaration,) = (value for value in model.graph.input if value.name == picture.name)
    declaration.type.tensor_type.elem_type = TensorProto.UINT8
    onnx.save(model, out)
    return Graph.read(out)


def _pictures(graph: Graph, layout: str, datatype: str) -> list[Value]:
    """Return the inputs that can be a picture: four sizes, three channels where the layout has them."""
    channels = layout.index("C") + 1
    return [
        value
        for value in graph.inputs
        if value.datatype == datatype and len(value.sizes) == 4 and value.sizes[channels] == 3
    ]


def _scaling(name: str, normalisation: Normalisation) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Return nodes and constants for ``pixel * factor - offset``, without a step that changes nothing."""
    steps = {"Cast": None, "Mul": normalisation.factor, "Sub": normalisation.offset}
    if (normalisation.factor == 1).all():
        del steps["Mul"]
    if (normalisation.offset == 0).all():
        del steps["Sub"]
    nodes, weights, value = [], [], name
    for operator, numbers in steps.items():
        result = f"{PREFIX}_{operator}"
        if numbers is None:
            nodes.append(helper.make_node(operator, [value], [result], name=result, to=TensorProto.FLOAT))
        else:
            weights.append(numpy_helper.from_array(normalisation.reshape(numbers), f"{result}_by"))
            nodes.append(helper.make_node(operator, [value, f"{result}_by"], [result], name=result))
        value = result
    nodes[-1].output[0] = SCALED
    return nodes, weights
