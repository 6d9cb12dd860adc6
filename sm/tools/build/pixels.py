"""A picture's bytes as a model's input: what ``preprocess.json`` does with a number moves into the graph.

A quarter of the bytes goes to Triton, and the router converts nothing. Sizes and the order of the axes and
of the channels stay: the caller sends the same numbers before their scaling, as UINT8 instead of FP32.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper

from sm.client.preprocessing import Normalisation
from sm.errors import StartError
from sm.tools.build.onnx_graph import Graph, Value

#: What the new nodes and their values are called, and the last of them.
PREFIX, SCALED = "pixels", "pixels_scaled"


def given(graph: Graph, description: Path, out: Path) -> Graph:
    """The same graph at ``out`` with pixels as its input; :class:`StartError` where it takes no pictures.

    One that takes them as bytes already is given back. ``description`` is the model's ``preprocess.json``.
    """
    normalisation = Normalisation.read(description)
    pictures = _pictures(graph, normalisation.layout, "TYPE_FP32")
    if not pictures and len(_pictures(graph, normalisation.layout, "TYPE_UINT8")) == 1:
        return graph
    if len(pictures) != 1:
        raise StartError(
            f"{graph.path} has {len(pictures)} inputs that are a picture (FP32, {normalisation.layout}, "
            "three channels); --uint8 is for a graph with one."
        )
    (picture,) = pictures
    model = onnx.load(graph.path)
    for node in model.graph.node:
        node.input[:] = [SCALED if name == picture.name else name for name in node.input]
    nodes, weights = _scaling(picture.name, normalisation)
    for place, node in enumerate(nodes):
        model.graph.node.insert(place, node)
    model.graph.initializer.extend(weights)
    (said,) = (value for value in model.graph.input if value.name == picture.name)
    said.type.tensor_type.elem_type = TensorProto.UINT8
    onnx.save(model, out)
    return Graph.read(out)


def _pictures(graph: Graph, layout: str, datatype: str) -> list[Value]:
    """The inputs that can be a picture: four sizes, three channels where they belong."""
    channels = layout.index("C") + 1
    return [
        value
        for value in graph.inputs
        if value.datatype == datatype and len(value.sizes) == 4 and value.sizes[channels] == 3
    ]


def _scaling(name: str, said: Normalisation) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """``pixel * factor - offset`` as the client has it; a step that changes nothing is left out."""
    steps = {"Cast": None, "Mul": said.factor, "Sub": said.offset}
    if (said.factor == 1).all():
        del steps["Mul"]
    if (said.offset == 0).all():
        del steps["Sub"]
    nodes, weights, value = [], [], name
    for operator, numbers in steps.items():
        result = f"{PREFIX}_{operator}"
        if numbers is None:
            nodes.append(helper.make_node(operator, [value], [result], name=result, to=TensorProto.FLOAT))
        else:
            weights.append(numpy_helper.from_array(said.reshape(numbers), f"{result}_by"))
            nodes.append(helper.make_node(operator, [value, f"{result}_by"], [result], name=result))
        value = result
    nodes[-1].output[0] = SCALED
    return nodes, weights
