"""Change a graph so that less is sent and computed: bytes of a picture go in, objects or words come out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import onnx
from onnx import TensorProto, helper, numpy_helper

from sm.client.preprocessing import Normalisation
from sm.errors import CommandError
from sm.repository.manifest import Change
from trireme_extensions.convert.build_request import OPTIONS, options
from trireme_extensions.convert.onnx_graph import Graph, Graphs, Value
from trireme_tools.build import masks, suppression

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


NAMES: tuple[Change, ...] = get_args(Change)
#: The file that describes a picture's preprocessing.
DESCRIPTION = "preprocess.json"
#: The file with a language model's vocabulary.
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class GraphChanges:
    """Changes of a graph."""

    #: The input is the picture's bytes.
    uint8: bool = False
    #: Boxes are suppressed in the graph.
    nms: bool = False
    #: A language model gives only the best words of its masks.
    masks: bool = False

    @classmethod
    def of(cls, names: Collection[str]) -> GraphChanges:
        """Return the changes with these names."""
        return cls(**{name: name in names for name in NAMES})

    @classmethod
    def read(cls, model: Path) -> GraphChanges:
        """Read the changes from the model's folder in git."""
        words = options(model / OPTIONS)
        unknown = set(words) - {f"--{name}" for name in NAMES}
        if unknown:
            raise CommandError(f"{model / OPTIONS}: {min(unknown)} is not for every target.")
        return cls.of({word.removeprefix("--") for word in words})

    @property
    def names(self) -> tuple[Change, ...]:
        """The names of the changes, for the manifest."""
        return tuple(name for name in NAMES if getattr(self, name))

    def graphs(
        self,
        source: Graph,
        description: Path,
        workshop: Path,
        *,
        way: suppression.Way = "records",
        tokenizer: Path | None = None,
    ) -> Graphs:
        """Change the graph in ``workshop``. ``description`` is the ``preprocess.json`` to use.

        ``tokenizer``, by default beside it, is read for ``masks`` only.
        """
        prepared = add_scaling(source, description, workshop / "pixels.onnx") if self.uint8 else source
        if self.masks and not masks.has_mask_outputs(prepared):
            vocabulary = masks.Vocabulary.read(description, tokenizer or description.with_name(TOKENIZER))
            served = masks.add_mask_outputs(prepared, vocabulary, workshop / "masks.onnx")
        else:
            served = self.suppress_boxes(prepared, workshop, way)
        # A change that the source already contains is not made again.
        has_new_outputs = served is not prepared
        applied = GraphChanges(
            prepared is not source, self.nms and has_new_outputs, self.masks and has_new_outputs
        )
        return Graphs(source, prepared, served, applied.names)

    def suppress_boxes(self, graph: Graph, workshop: Path, way: suppression.Way) -> Graph:
        """Suppress boxes, if that is wanted."""
        return suppression.add_suppression(graph, workshop / "objects.onnx", way) if self.nms else graph
