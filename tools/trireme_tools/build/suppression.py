"""Suppress boxes inside the graph: only the objects leave Triton, not YOLOv5's 25,200 rows (8.6 MB).

The rows [b, n, 5 + classes] become ``objects`` [b, :data:`OBJECTS`, 6], best first: x1, y1, x2, y2, score,
class. If there are fewer objects, the remaining rows have the score 0. A row counts with its best class only,
as in the client.

On ONNX Runtime each record has its own thresholds, the inputs ``confidence`` and ``iou`` [b, 1], so that
requests with different thresholds share a batch. A TensorRT plan has its thresholds in it
(:data:`CONFIDENCE`, :data:`IOU`): the rows stay an output for requests with other thresholds, and the file
:data:`NAME` tells the client the plan's. NVIDIA names ONNX's ``NonMaxSuppression`` as the successor of its
plugin ``EfficientNMS_TRT``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import onnx
from onnx import compose

from sm import hardware
from sm.errors import CommandError
from sm.repository.manifest import Target
from trireme_extensions.convert.onnx_graph import Graph, Value
from trireme_tools.build.graph_text import read_graph

#: The output, and the file beside ``config.pbtxt`` with the thresholds of a plan.
OUTPUT, NAME = "objects", "suppression.json"
#: The most objects of a record, and the most candidates compared: the client's own numbers.
OBJECTS, CANDIDATES = 1000, 2048
#: The part that suppresses boxes: ONNX's operator with thresholds of each record, or, in a plan, the
#: operator or the plugin.
Way = Literal["records", "operator", "plugin"]
#: The version of TensorRT that deprecated the plugin.
PLUGIN_DEPRECATED = (10, 12)
#: A plan's thresholds. With a confidence under 0.007 the plugin sorts every score of every class.
CONFIDENCE, IOU = 0.01, 0.45
#: The first opset with the operators used here; every later one has them with the same meaning.
OPSET = 12


def way_for(target: Target) -> Way:
    """Return what suppresses on a target: in a plan the plugin, if this TensorRT has not deprecated it."""
    if target != "tensorrt":
        return "records"
    version = hardware.version_numbers(hardware.tensorrt() or "")
    return "plugin" if version and version < PLUGIN_DEPRECATED else "operator"


def add_suppression(graph: Graph, out: Path, way: Way) -> Graph:
    """Write the graph with suppressed boxes to ``out``; return the same graph if it suppresses already."""
    if way == "records" and [value.name for value in graph.outputs] == [OUTPUT]:
        return graph
    rows, width = _find_rows(graph)
    model = onnx.load(graph.path)
    (opset,) = (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset < OPSET:
        raise CommandError(f"{graph.path} has opset {opset}; --nms needs {OPSET} or later: export it again.")
    tail = read_graph(
        f"suppression_{way}",
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
    tail = compose.add_prefix(tail, "suppression_", rename_inputs=False, rename_outputs=False)
    _append(model, tail, rows, keep=way != "records")
    if way == "plugin":
        model.opset_import.extend(entry for entry in tail.opset_import if entry.domain == "TRT")
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
