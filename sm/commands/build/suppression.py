"""Suppress boxes inside the graph: only the objects leave Triton, not YOLOv5's 25,200 rows (8.6 MB).

The rows [b, n, 5 + classes] become ``objects`` [b, :data:`OBJECTS`, 6], best first: x1, y1, x2, y2, score,
class. If there are fewer objects, the remaining rows have the score 0. A row counts with its best class only,
as in the client.

On ONNX Runtime each record has its own thresholds, the inputs ``confidence`` and ``iou`` [b, 1], so that
requests with different thresholds share a batch. TensorRT's ``EfficientNMS_TRT`` has its thresholds in the
plan (:data:`CONFIDENCE`, :data:`IOU`): the rows stay an output for requests with other thresholds, and the
file :data:`NAME` tells the client the plan's.
"""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import compose, parser

from sm.commands.build.onnx_graph import Graph, Value
from sm.errors import CommandError

#: The output, and the file beside ``config.pbtxt`` with the thresholds of a plan.
OUTPUT, NAME = "objects", "suppression.json"
#: The most objects of a record, and the most candidates compared: the client's own numbers.
OBJECTS, CANDIDATES = 1000, 2048
#: A plan's thresholds. With a confidence under 0.007 the plugin sorts every score of every class.
CONFIDENCE, IOU = 0.01, 0.45
#: The first opset with the operators used here; every later one has them with the same meaning.
OPSET = 12

HEAD = '<ir_version: 8, opset_import: ["" : {opset}, "TRT" : 1]>'
#: Scan runs over one record after the other: the cost of a picture depends on what is in it.
ONNX = (
    HEAD
    + """
suppression (float[b, n, {width}] rows, float[b, 1] confidence, float[b, 1] iou)
    => (float[b, {objects}, 6] objects)
{{
  objects = Scan <num_scan_inputs = 3, body = record
      (float[n, {width}] record, float[1] least, float[1] most) => (float[{objects}, 6] found)
  {{
    zero = Constant <value = int64[1] {{0}}> ()
    one = Constant <value = int64[1] {{1}}> ()
    two = Constant <value = int64[1] {{2}}> ()
    three = Constant <value = int64[1] {{3}}> ()
    four = Constant <value = int64[1] {{4}}> ()
    five = Constant <value = int64[1] {{5}}> ()
    width = Constant <value = int64[1] {{{width}}}> ()
    flat = Constant <value = int64[1] {{-1}}> ()
    column = Constant <value = int64[2] {{-1, 1}}> ()

    every_sure = Slice (record, four, five, one)
    over = Greater (every_sure, least)
    over_flat = Reshape (over, flat)
    over_places = NonZero (over_flat)
    hopeful_places = Reshape (over_places, flat)
    hopeful = Gather <axis = 0> (record, hopeful_places)
    sure = Slice (hopeful, four, five, one)
    classes = Slice (hopeful, five, width, one)
    likeliest, kind = TopK <axis = 1> (classes, one)
    score = Mul (sure, likeliest)
    score_flat = Reshape (score, flat)

    there = Shape (score_flat)
    candidates = Constant <value = int64[1] {{{candidates}}}> ()
    compared = Min (there, candidates)
    scores, order = TopK <axis = 0> (score_flat, compared)
    kinds = Gather <axis = 0> (kind, order)
    ordered = Gather <axis = 0> (hopeful, order)
    boxes = Slice (ordered, zero, four, one)

    kinds_flat = Reshape (kinds, flat)
    depth = Constant <value = int64[1] {{{classes}}}> ()
    off_on = Constant <value = float[2] {{0.0, 1.0}}> ()
    of_kind = OneHot <axis = 0> (kinds_flat, depth, off_on)
    score_of_kind = Mul (of_kind, scores)
    by_kind = Constant <value = int64[3] {{1, {classes}, -1}}> ()
    nms_scores = Reshape (score_of_kind, by_kind)
    by_box = Constant <value = int64[3] {{1, -1, 4}}> ()
    nms_boxes = Reshape (boxes, by_box)
    limit = Constant <value = int64[1] {{{objects}}}> ()
    kept = NonMaxSuppression <center_point_box = 1> (nms_boxes, nms_scores, limit, most, least)

    kept_column = Slice (kept, two, three, one)
    kept_places = Reshape (kept_column, flat)
    kept_count = Shape (kept_places)
    given = Min (kept_count, limit)
    places, unused = TopK <axis = 0, largest = 0> (kept_places, given)
    chosen = Gather <axis = 0> (boxes, places)
    centre = Slice (chosen, zero, two, one)
    extent = Slice (chosen, two, four, one)
    half = Constant <value = float {{0.5}}> ()
    halves = Mul (extent, half)
    low = Sub (centre, halves)
    high = Add (centre, halves)
    chosen_scores = Gather <axis = 0> (scores, places)
    chosen_column = Reshape (chosen_scores, column)
    chosen_kinds = Gather <axis = 0> (kinds, places)
    kind_numbers = Cast <to = 1> (chosen_kinds)
    answer = Concat <axis = 1> (low, high, chosen_column, kind_numbers)
    room = Constant <value = int64[2] {{{objects}, 6}}> ()
    nothing = ConstantOfShape (room)
    padded = Concat <axis = 0> (answer, nothing)
    found = Slice (padded, zero, limit, zero)
  }}> (rows, confidence, iou)
}}
"""
)
#: Boxes are corners on both sides of the plugin. Scores that are not their row's best become 0.
TENSORRT = (
    HEAD
    + """
suppression (float[b, n, {width}] rows) => (float[b, {objects}, 6] objects)
{{
  zero = Constant <value = int64[1] {{0}}> ()
  two = Constant <value = int64[1] {{2}}> ()
  four = Constant <value = int64[1] {{4}}> ()
  five = Constant <value = int64[1] {{5}}> ()
  width = Constant <value = int64[1] {{{width}}}> ()
  axis = Constant <value = int64[1] {{2}}> ()
  centre = Slice (rows, zero, two, axis)
  extent = Slice (rows, two, four, axis)
  half = Constant <value = float {{0.5}}> ()
  halves = Mul (extent, half)
  low = Sub (centre, halves)
  high = Add (centre, halves)
  boxes = Concat <axis = 2> (low, high)

  sure = Slice (rows, four, five, axis)
  classes = Slice (rows, five, width, axis)
  every = Mul (sure, classes)
  one = Constant <value = int64[1] {{1}}> ()
  best, best_place = TopK <axis = 2> (every, one)
  less = Less (every, best)
  nothing = Constant <value = float {{0.0}}> ()
  scores = Where (less, nothing, every)

  count, found, found_scores, found_kinds = TRT.EfficientNMS_TRT <
      plugin_version = "1", score_threshold = {confidence}, iou_threshold = {iou},
      max_output_boxes = {objects}, background_class = -1, score_activation = 0, box_coding = 0
  > (boxes, scores)

  column = Constant <value = int64[3] {{0, {objects}, 1}}> ()
  places = Constant <value = int32[{objects}] {{{places}}}> ()
  filled = Less (places, count)
  sure_scores = Where (filled, found_scores, nothing)
  score_column = Reshape (sure_scores, column)
  kind_column = Reshape (found_kinds, column)
  kind_numbers = Cast <to = 1> (kind_column)
  objects = Concat <axis = 2> (found, score_column, kind_numbers)
}}
"""
)


def add_suppression(graph: Graph, out: Path, *, plugin: bool) -> Graph:
    """Write the graph with suppressed boxes to ``out``; return the same graph if it suppresses already.

    ``plugin``: with TensorRT's plugin instead of ONNX's operator.
    """
    if not plugin and [value.name for value in graph.outputs] == [OUTPUT]:
        return graph
    rows, width = _find_rows(graph)
    model = onnx.load(graph.path)
    (opset,) = (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset < OPSET:
        raise CommandError(f"{graph.path} has opset {opset}; --nms needs {OPSET} or later: export it again.")
    text = (TENSORRT if plugin else ONNX).format(
        opset=opset,
        width=width,
        classes=width - 5,
        objects=OBJECTS,
        candidates=CANDIDATES,
        confidence=CONFIDENCE,
        iou=IOU,
        places=", ".join(map(str, range(OBJECTS))),
    )
    # The prefix keeps the new names apart from the graph's own.
    tail = compose.add_prefix(
        parser.parse_model(text), "suppression_", rename_inputs=False, rename_outputs=False
    )
    _append(model, tail, rows, keep=plugin)
    onnx.save(model, out)
    return Graph.read(out)


def remove_suppression(artifact: Path, graph: Graph, out: Path) -> Path:
    """Undo :func:`add_suppression`: write what ``artifact`` has of ``graph`` to ``out``."""
    inputs, outputs = ([value.name for value in values] for values in (graph.inputs, graph.outputs))
    onnx.utils.extract_model(artifact, out, inputs, outputs, check_model=False)
    return out


def describe(folder: Path) -> None:
    """Write the thresholds of a plan for the client."""
    (folder / NAME).write_text(json.dumps({"confidence": CONFIDENCE, "iou": IOU}) + "\n")


def _find_rows(graph: Graph) -> tuple[Value, int]:
    """Return the output of rows, and the numbers in a row."""
    value = graph.outputs[0]
    if len(graph.outputs) == 1 and value.datatype == "TYPE_FP32" and len(value.sizes) == 3 and graph.batched:
        width = value.sizes[2]
        if isinstance(width, int) and width > 5:
            return value, width
    raise CommandError(
        f"{graph.path} does not give YOLOv5's rows, FP32 [batch, boxes, 5 + classes], which --nms is for."
    )


def _append(model: onnx.ModelProto, tail: onnx.ModelProto, rows: Value, *, keep: bool) -> None:
    """Append ``tail``, which takes the ``rows``; ``keep``: the rows stay an output."""
    for node in tail.graph.node:
        node.input[:] = [rows.name if name == "rows" else name for name in node.input]
    for value in (*tail.graph.input, *tail.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = str(rows.sizes[0])
    model.graph.node.extend(tail.graph.node)
    model.graph.input.extend(tail.graph.input[1:])
    if not keep:
        model.graph.value_info.extend(model.graph.output)
        del model.graph.output[:]
    model.graph.output.extend(tail.graph.output)
    if keep:
        model.opset_import.extend(entry for entry in tail.opset_import if entry.domain == "TRT")
