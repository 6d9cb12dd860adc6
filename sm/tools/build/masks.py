"""A masked language model's best words for the masks alone, in the place of the ``logits`` of all words.

The vocabulary is the widest matrix of a small BERT, and who wants masks filled reads one row of eight, and
of that a few words. ``word_ids`` [b, m, n] has the :data:`WORDS` likeliest of each mask, best first, equals
in the order of ids; ``word_scores`` the logarithms of their probabilities, which are over all words but the
reserved ones: those are never given. The masks come in their order; m is the most that a record of the batch
has, one at least, and what is over in a record with fewer means nothing. ONNX Runtime computes every output
of a graph, asked for or not: so these stand in the place of the logits, not beside them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import onnx
from onnx import compose, parser

from sm.errors import StartError
from sm.tools.build.onnx_graph import Graph

#: The input with the text.
IDS = "input_ids"
OUTPUTS = ["word_ids", "word_scores"]
#: Given for each mask: the most that a caller of the client can ask for.
WORDS = 100
#: Words that stand for nothing, [CLS] or [unused7]: the client's own pattern.
RESERVED = re.compile(r"\[.+\]")
#: The operators used here are there since, and mean the same in every later one.
OPSET = 11
#: TopK takes the first of equals first: so the masks come in their order. What is the same in every call, the
#: bias with the reserved words far below all others, is computed once, when the graph is loaded.
TAIL = """<ir_version: 8, opset_import: ["" : {opset}]>
masks (int64[b, s] ids, float[b, s, h] hidden, float[h, {words}] weight, float[{words}] bias)
    => (int64[b, m, {given}] word_ids, float[b, m, {given}] word_scores)
{{
  mask = Constant <value = int64 {{{mask}}}> ()
  is_mask = Equal (ids, mask)
  one_each = Cast <to = 1> (is_mask)
  along = Constant <value = int64 {{1}}> ()
  counted = CumSum (one_each, along)
  most = ReduceMax <keepdims = 0> (counted)
  least = Constant <value = float {{1.0}}> ()
  room = Max (most, least)
  room_whole = Cast <to = 7> (room)
  flat = Constant <value = int64[1] {{-1}}> ()
  room_flat = Reshape (room_whole, flat)
  unused, places = TopK <axis = 1> (one_each, room_flat)
  column = Constant <value = int64[3] {{0, -1, 1}}> ()
  places_column = Reshape (places, column)
  sizes = Shape (hidden)
  two = Constant <value = int64[1] {{2}}> ()
  three = Constant <value = int64[1] {{3}}> ()
  width = Slice (sizes, two, three)
  ones = Constant <value = int64[2] {{1, 1}}> ()
  wide = Concat <axis = 0> (ones, width)
  places_wide = Expand (places_column, wide)
  rows = GatherElements <axis = 1> (hidden, places_wide)
  every_word = Constant <value = int64[1] {{{words}}}> ()
  nothing = ConstantOfShape (every_word)
  reserved = Constant <value = int64[{reserved}] {{{places}}}> ()
  reserved_count = Shape (reserved)
  far_below = Constant <value = float {{-1.0e30}}> ()
  far_below_each = Expand (far_below, reserved_count)
  barring = ScatterElements <axis = 0> (nothing, reserved, far_below_each)
  barring_bias = Add (bias, barring)
  product = MatMul (rows, weight)
  logits = Add (product, barring_bias)
  scores = LogSoftmax <axis = 2> (logits)
  given = Constant <value = int64[1] {{{given}}}> ()
  word_scores, word_ids = TopK <axis = 2> (scores, given)
}}
"""


@dataclass(frozen=True)
class Vocabulary:
    """Ids of the mask, and of the words that are never the answer."""

    mask: int
    reserved: tuple[int, ...]

    @classmethod
    def read(cls, description: Path, tokenizer: Path) -> Vocabulary:
        """``preprocess.json`` names the mask, ``tokenizer.json`` has all words."""
        try:
            said = json.loads(description.read_text())["mask_token"]
            tokens = json.loads(tokenizer.read_text())
            ids = {
                **tokens["model"]["vocab"],
                **{each["content"]: each["id"] for each in tokens["added_tokens"]},
            }
            reserved = (place for word, place in ids.items() if RESERVED.fullmatch(word))
            return cls(int(ids[said]), tuple(sorted(map(int, reserved))))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise StartError(
                f"{description} and {tokenizer} do not say what the mask is: {error!r}."
            ) from error


@dataclass(frozen=True)
class Decoder:
    """The last step of the graph, ``hidden @ weight + bias``, by its tensors' names."""

    hidden: str
    weight: str
    bias: str
    words: int
    #: Places of its two nodes, in their order.
    steps: tuple[int, int]


def within(graph: Graph) -> bool:
    """Whether it has these outputs already."""
    return [value.name for value in graph.outputs] == OUTPUTS


def added(graph: Graph, vocabulary: Vocabulary, out: Path) -> Graph:
    """The graph with these outputs, at ``out``."""
    model = onnx.load(graph.path)
    opset = max(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    if opset < OPSET:
        raise StartError(f"{graph.path} has opset {opset}; --masks needs {OPSET} or later: export it anew.")
    decoder = _decoder(graph, model.graph)
    reserved = [place for place in vocabulary.reserved if place < decoder.words]
    text = TAIL.format(
        opset=opset,
        mask=vocabulary.mask,
        words=decoder.words,
        reserved=len(reserved),
        places=", ".join(map(str, reserved)),
        given=min(WORDS, decoder.words - len(reserved)),
    )
    tail = compose.add_prefix(parser.parse_model(text), "masks_", rename_inputs=False, rename_outputs=False)
    given = {"ids": IDS, "hidden": decoder.hidden, "weight": decoder.weight, "bias": decoder.bias}
    for node in tail.graph.node:
        node.input[:] = [given.get(name, name) for name in node.input]
    del model.graph.node[decoder.steps[1]], model.graph.node[decoder.steps[0]]
    model.graph.node.extend(tail.graph.node)
    for value in tail.graph.output:
        value.type.tensor_type.shape.dim[0].dim_param = str(graph.outputs[0].sizes[0])
    del model.graph.output[:]
    model.graph.output.extend(tail.graph.output)
    onnx.save(model, out)
    return Graph.read(out)


def _decoder(graph: Graph, proto: onnx.GraphProto) -> Decoder:
    """Where the graph ends as a masked language model does; :class:`StartError` where it does not."""
    value = graph.outputs[0]
    makers = {name: place for place, node in enumerate(proto.node) for name in node.output}
    words = value.sizes[-1]
    if len(graph.outputs) == 1 and len(value.sizes) == 3 and isinstance(words, int):
        last = makers[value.name]
        for product, bias in (
            permutations(proto.node[last].input) if proto.node[last].op_type == "Add" else ()
        ):
            step = makers.get(product)
            if step is not None and proto.node[step].op_type == "MatMul":
                hidden, weight = proto.node[step].input
                return Decoder(hidden, weight, bias, words, (step, last))
    raise StartError(
        f"{graph.path} does not end as a masked language model, {IDS} to a matrix of words and a bias, "
        "which --masks is for."
    )
