"""Parts of graphs that a change adds, written as text in the files ``*.onnxtxt``."""

from __future__ import annotations

from pathlib import Path
from string import Template

import onnx
import onnx.parser


def read_graph(name: str, **values: object) -> onnx.ModelProto:
    """Parse the graph in the file ``NAME.onnxtxt`` beside this module, with ``values`` for its ``$names``."""
    text = Path(__file__).with_name(f"{name}.onnxtxt").read_text()
    return onnx.parser.parse_model(Template(text).substitute(values))
