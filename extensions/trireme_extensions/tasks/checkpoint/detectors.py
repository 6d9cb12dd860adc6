"""Read what an ONNX graph says of its own rows of boxes: Ultralytics writes it into the graph's metadata."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import onnx

from sm.errors import CommandError

#: The tasks of Ultralytics whose rows have upright boxes.
UPRIGHT = ("detect", "segment", "pose")
#: The outputs of other tasks, in the words of a sentence.
OTHERS = {
    "obb": "turned boxes, which object-detection does not answer with",
    "classify": "classes of a picture",
}
#: The grey of the bars around a picture that Ultralytics trains with and predicts on (``LetterBox``).
FILL = 114
#: The layer of an RT-DETR.
RT_DETR = "RTDETRDecoder"


def detector(graph: Path) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Return a detector's options of ``task.json``, its labels, a name on each line, and ``preprocess.json``.

    All are empty for a graph that says nothing of itself, such as one of the older YOLOv5 repository: then
    labels and shape count. The fields are those of ``Exporter.metadata`` in Ultralytics 8.4.190.

    Raises:
        CommandError: The graph gives something else than upright boxes.
    """
    model = onnx.load(graph, load_external_data=False)
    found = {entry.key: entry.value for entry in model.metadata_props}
    task = found.get("task", "")
    if task and task not in UPRIGHT:
        raise CommandError(
            f"{graph} says that its task is {task!r}: it gives {OTHERS.get(task, 'no rows of boxes')}. "
            "Write a client of your own for it (sm new-client), or export a model of upright boxes."
        )
    names = _literal(found.get("names", ""))
    labels = "".join(f"{names[key]}\n" for key in sorted(names)) if isinstance(names, dict) else ""
    options: dict[str, Any] = {}
    if task:
        options["head"] = _head(found, model)
    if task == "pose":
        options["extra"] = math.prod(_literal(found.get("kpt_shape", "")) or (0,))
    size = _literal(found.get("imgsz", ""))
    steps = {"size": size, "fill": FILL, "channels": "RGB", "scale": 1 / 255} if task and size else {}
    return options, labels, steps


def _head(found: dict[str, str], model: onnx.ModelProto) -> str:
    """Return the name of :class:`trireme_extensions.tasks.detection.Head` for the rows."""
    if found.get("head") == RT_DETR:
        return "rtdetr"
    if "rtdetr" in found.get("description", "").lower():  # before 8.4 no field had the layer
        return "rtdetr" if _columns(model) == 6 and "head" in found else "rtdetr_classes"
    arguments = _literal(found.get("args", ""))
    has_suppressed = isinstance(arguments, dict) and arguments.get("nms")
    return "nms" if has_suppressed or _literal(found.get("end2end", "")) else "v8"


def _columns(model: onnx.ModelProto) -> int:
    dimensions = model.graph.output[0].type.tensor_type.shape.dim
    return int(dimensions[-1].dim_value) if dimensions else 0


def _literal(text: str) -> Any:
    """Read a value that was written by Python's ``str``; None if it is not one."""
    try:
        return ast.literal_eval(text) if text else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
