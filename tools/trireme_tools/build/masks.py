"""Let a masked language model give the best words of its masks instead of the ``logits`` of all positions.

The vocabulary is the widest matrix of a small BERT, and a caller who fills masks needs few rows of the logits
and few words of each. The outputs are

- ``word_ids`` [b, m, n]: the :data:`WORDS` most likely words of each mask, best first, equal ones in the
  order of their ids;
- ``word_scores`` [b, m, n]: the logarithms of their probabilities.

Reserved words are never given and have no share of the probability. The masks keep their order. m is the
largest number of masks of a record in the batch, at least 1; the rows that a record with fewer masks does not
need have no meaning. The outputs replace the logits, because ONNX Runtime computes every output of a graph,
requested or not.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import onnx
from onnx import compose

from sm.errors import CommandError
from trireme_extensions.convert.onnx_graph import Graph
from trireme_tools.build.graph_text import read_graph

#: The input with the text.
IDS = "input_ids"
OUTPUTS = ["word_ids", "word_scores"]
#: Words for each mask: the most that a caller of the client can ask for.
WORDS = 100
#: Entries of the vocabulary that are not words, such as [CLS] or [unused7]: the client's own pattern.
RESERVED = re.compile(r"\[.+\]")
#: The first opset with the operators used here; every later one has them with the same meaning.
OPSET = 11


@dataclass(frozen=True)
class Vocabulary:
    """The id of the mask, and the ids that are never an answer."""

    mask: int
    reserved: tuple[int, ...]

    @classmethod
    def read(cls, description: Path, tokenizer: Path) -> Vocabulary:
        """Read the mask's name from ``preprocess.json`` and all words from ``tokenizer.json``."""
        try:
            mask_token = json.loads(description.read_bytes())["mask_token"]
            tokens = json.loads(tokenizer.read_bytes())
            ids = {
                **tokens["model"]["vocab"],
                **{token["content"]: token["id"] for token in tokens["added_tokens"]},
            }
            reserved = (index for word, index in ids.items() if RESERVED.fullmatch(word))
            return cls(int(ids[mask_token]), tuple(sorted(map(int, reserved))))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CommandError(
                f"{description} and {tokenizer} do not say what the mask is: {error!r}."
            ) from error


@dataclass(frozen=True)
class Decoder:
    """The last step of the graph, ``hidden @ weight + bias``, by its tensors' names."""

    hidden: str
    weight: str
    bias: str
    words: int
    #: Indices of its two nodes, MatMul and Add.
    nodes: tuple[int, int]


def has_mask_outputs(graph: Graph) -> bool:
    """True if the graph has these outputs already."""
    return [value.name for value in graph.outputs] == OUTPUTS


def add_mask_outputs(graph: Graph, vocabulary: Vocabulary, out: Path) -> Graph:
    """Write the graph with these outputs to ``out``."""
    model = onnx.load(graph.path)
    opset = max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset < OPSET:
        raise CommandError(
            f"{graph.path} has opset {opset}; --masks needs {OPSET} or later: export it again."
        )
    decoder = _find_decoder(graph, model.graph)
    reserved = [index for index in vocabulary.reserved if index < decoder.words]
    tail = read_graph(
        "masks",
        opset=opset,
        mask=vocabulary.mask,
        words=decoder.words,
        reserved=len(reserved),
        places=", ".join(map(str, reserved)),
        given=min(WORDS, decoder.words - len(reserved)),
    )
    tail = compose.add_prefix(tail, "masks_", rename_inputs=False, rename_outputs=False)
    inputs = {"ids": IDS, "hidden": decoder.hidden, "weight": decoder.weight, "bias": decoder.bias}
    for node in tail.graph.node:
        node.input[:] = [inputs.get(name, name) for name in node.input]
    del model.graph.node[decoder.nodes[1]], model.graph.node[decoder.nodes[0]]
    model.graph.node.extend(tail.graph.node)
    for value in tail.graph.output:
        value.type.tensor_type.shape.dim[0].dim_param = str(graph.outputs[0].sizes[0])
    del model.graph.output[:]
    model.graph.output.extend(tail.graph.output)
    onnx.save(model, out)
    return Graph.read(out)


def _find_decoder(graph: Graph, proto: onnx.GraphProto) -> Decoder:
    """Find the last step of a masked language model. Raises :class:`CommandError` if the graph has none."""
    value = graph.outputs[0]
    producers = {name: index for index, node in enumerate(proto.node) for name in node.output}
    words = value.sizes[-1]
    if len(graph.outputs) == 1 and len(value.sizes) == 3 and isinstance(words, int):
        last = producers[value.name]
        for product, bias in (
            permutations(proto.node[last].input) if proto.node[last].op_type == "Add" else ()
        ):
            step = producers.get(product)
            if step is not None and proto.node[step].op_type == "MatMul":
                hidden, weight = proto.node[step].input
                return Decoder(hidden, weight, bias, words, (step, last))
    raise CommandError(
        f"{graph.path} does not end as a masked language model, {IDS} to a matrix of words and a bias, "
        "which --masks is for."
    )
