"""A masked language model's words for the masks alone: ``mask_logits`` in the place of ``logits``.

The vocabulary is the widest matrix of a small BERT, and who wants masks filled reads one row of eight.
``mask_logits`` [b, m, words] has the rows of the masks, in their order; m is the most that a record of the
batch has, one at least, and what is over in a record with fewer means nothing. ONNX Runtime computes every
output of a graph, asked for or not: so the one stands in the place of the other, not beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import onnx
from onnx import compose, parser

from sm.build.graph import Graph
from sm.errors import StartError

#: The input with the words, and the output.
IDS, OUTPUT = "input_ids", "mask_logits"
#: The operators used here are there since, and mean the same in every later one.
OPSET = 11
#: TopK takes the first of equals first: so the masks come in their order.
TAIL = """<ir_version: 8, opset_import: ["" : {opset}]>
masks (int64[b, s] ids, float[b, s, h] hidden, float[h, {words}] weight, float[{words}] bias)
    => (float[b, m, {words}] mask_logits)
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
  product = MatMul (rows, weight)
  mask_logits = Add (product, bias)
}}
"""


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
    """Whether it has this output already."""
    return [value.name for value in graph.outputs] == [OUTPUT]


def added(graph: Graph, mask: int, out: Path) -> Graph:
    """The graph with this output, at ``out``; ``mask`` is the mask's place in the vocabulary."""
    model = onnx.load(graph.path)
    opset = max(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    if opset < OPSET:
        raise StartError(f"{graph.path} has opset {opset}; --masks needs {OPSET} or later: export it anew.")
    decoder = _decoder(graph, model.graph)
    text = TAIL.format(opset=opset, mask=mask, words=decoder.words)
    tail = compose.add_prefix(parser.parse_model(text), "masks_", rename_inputs=False, rename_outputs=False)
    given = {"ids": IDS, "hidden": decoder.hidden, "weight": decoder.weight, "bias": decoder.bias}
    for node in tail.graph.node:
        node.input[:] = [given.get(name, name) for name in node.input]
    del model.graph.node[decoder.steps[1]], model.graph.node[decoder.steps[0]]
    model.graph.node.extend(tail.graph.node)
    (rows,) = tail.graph.output
    rows.type.tensor_type.shape.dim[0].dim_param = str(graph.outputs[0].sizes[0])
    del model.graph.output[:]
    model.graph.output.append(rows)
    onnx.save(model, out)
    return Graph.read(out)


def mask(description: Path, tokenizer: Path) -> int:
    """The mask's place in the vocabulary: ``preprocess.json`` has its word, ``tokenizer.json`` the place."""
    try:
        said = json.loads(description.read_text())["mask_token"]
        tokens = json.loads(tokenizer.read_text())["added_tokens"]
        return next(int(token["id"]) for token in tokens if token["content"] == said)
    except (OSError, ValueError, LookupError, TypeError, StopIteration) as error:
        raise StartError(f"{description} and {tokenizer} do not say what the mask is: {error!r}.") from error


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
