"""``sm build-model --target torch``: convert an ONNX graph to a PyTorch program with ``torch.export``.

docs/inside/own-code.md says why no library does it. An operator that
:mod:`trireme_tools.build.torch_operators` does not have stops the conversion with its name.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from sm.build.build_request import BuildRequest
from sm.build.graph_runner import Feed
from sm.build.onnx_graph import Graph
from sm.build.targets import GRAPH, PROGRAM, BuiltModel, convert_precision
from sm.errors import CommandError
from sm.repository.manifest import Tool
from sm.settings import PACKAGE
from sm.triton.tensors import DTYPES
from trireme_tools.build.exporting import import_needed
from trireme_tools.build.torch_operators import Constant, Operators, as_tensor

#: Records of the example that torch traces; a size of 1 would become a constant.
TRACED_RECORDS = 2
#: Every other free size of the example, such as a text's length.
TRACED_SIZE = 12
#: The largest free size other than the batch, such as a text's length.
MAX_FREE_SIZE = 512
#: The model that runs a program in Triton's python backend, and what it imports.
RUNNER = {
    "model.py": PACKAGE / "triton" / "torch_program.py",
    "batching.py": PACKAGE / "triton" / "onnx_cpu" / "batching.py",
    "request_token.py": PACKAGE / "triton" / "onnx_cpu" / "request_token.py",
}


class TorchProgram:
    """A saved program, run on this machine's processor with the interface of an ONNX Runtime session."""

    def __init__(self, path: Path, graph: Graph) -> None:
        self.torch = import_needed("torch")
        self.module = self.torch.export.load(path).module()
        self.inputs = [value.name for value in graph.inputs]
        self.outputs = [value.name for value in graph.outputs]

    def run(self, names: list[str], feed: Feed, /) -> list[Any]:
        with self.torch.inference_mode():
            answers = self.module(*(self.torch.from_numpy(np.array(feed[name])) for name in self.inputs))
        by_name = dict(zip(self.outputs, answers, strict=True))
        return [by_name[name].numpy() for name in names]


def build(graph: Graph, folder: Path, request: BuildRequest, largest: int) -> BuiltModel:
    """Write the graph as a program, in the request's precision, and the Python model that runs it."""
    if request.precision not in ("fp32", "fp16"):
        raise CommandError("--target torch takes --precision fp32 or fp16.")
    with tempfile.TemporaryDirectory(dir=folder) as workshop:
        typed = convert_precision(graph, request.precision, request.calibration, Path(workshop) / GRAPH)
        version = convert(typed, folder / PROGRAM, largest)
    for name, file in RUNNER.items():
        shutil.copy(file, folder / name)
    return BuiltModel(Tool(name="torch", version=version))


def convert(graph: Graph, out: Path, largest: int) -> str:
    """Write the graph as a program that takes batches up to ``largest``; return torch's version."""
    torch = import_needed("torch")
    module = _module(torch, graph)
    by_name: dict[str, Any] = {}
    examples, dynamic = [], []
    for value in graph.inputs:
        free = {
            place: _dimension(torch, graph, size, place, largest, by_name)
            for place, size in enumerate(value.sizes)
            if isinstance(size, str)
        }
        sizes = [
            size if isinstance(size, int) else TRACED_RECORDS if graph.batched and not place else TRACED_SIZE
            for place, size in enumerate(value.sizes)
        ]
        examples.append(
            torch.ones(sizes, dtype=getattr(torch, DTYPES[value.datatype.removeprefix("TYPE_")].name))
        )
        dynamic.append(free)
    try:
        with torch.no_grad():
            program = torch.export.export(module, tuple(examples), dynamic_shapes=(tuple(dynamic),))
        torch.export.save(program, out)
    except CommandError:
        raise
    except Exception as error:  # torch's own classes, of several modules
        raise CommandError(
            f"{graph.path} cannot be exported by torch: {str(error).splitlines()[0]}"
        ) from error
    return str(torch.__version__)


def _dimension(torch: Any, graph: Graph, size: str, place: int, largest: int, by_name: dict[str, Any]) -> Any:
    if size not in by_name:
        batch = graph.batched and place == 0
        if batch and largest == 1:
            by_name[size] = None
        else:
            name = "batch" if batch else f"free_{len(by_name)}"
            by_name[size] = torch.export.Dim(
                name, min=1, max=max(TRACED_RECORDS, largest) if batch else MAX_FREE_SIZE
            )
    return by_name[size]


def _module(torch: Any, graph: Graph) -> Any:
    """Wrap the graph in a module that takes its inputs in order and returns a tuple of its outputs."""
    loaded = onnx.load(graph.path)
    steps = Steps(torch, loaded)

    class Converted(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for place, constant in enumerate(steps.constants.values()):
                constant.name = f"constant_{place}"
                self.register_buffer(constant.name, constant.tensor)

        def forward(self, *tensors: Any) -> Any:
            values: dict[str, Any] = dict(zip((v.name for v in graph.inputs), tensors, strict=True))
            for name, constant in steps.constants.items():
                values[name] = Constant(constant.values, getattr(self, constant.name), constant.name)
            steps.run(values)
            return tuple(as_tensor(values[value.name]) for value in graph.outputs)

    return Converted().eval()


def check_operators(nodes: Iterable[Any], known: Collection[str]) -> None:
    """Raise :class:`CommandError` with every operator that is not among ``known``."""
    names = {
        f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for node in nodes
        if node.op_type not in known or node.domain not in ("", "ai.onnx")
    }
    if names:
        raise CommandError(
            f"the torch target does not know {', '.join(sorted(names))}: serve the model with --target "
            "cpu or onnxruntime."
        )


class Steps:
    """The nodes of a graph, without those that depend on constants only and are computed beforehand."""

    def __init__(self, torch: Any, model: Any) -> None:
        self.torch = torch
        self.opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        self.operators = Operators(torch, self.opset).table()
        check_operators(model.graph.node, {*self.operators, "Constant"})
        self.constants: dict[str, Constant] = {}
        self.nodes: list[tuple[Any, dict[str, Any]]] = []
        for weight in model.graph.initializer:
            self._add_constant(weight.name, numpy_helper.to_array(weight))
        for node in model.graph.node:
            self._add_node(node)

    def _add_node(self, node: Any) -> None:
        options = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
        if node.op_type == "Constant":
            value = options.get("value")
            number = next(iter(options.values())) if value is None else numpy_helper.to_array(value)
            self._add_constant(node.output[0], np.array(number))
        elif all(name in self.constants for name in node.input if name):
            arguments = [self.constants[name] if name else None for name in node.input]
            results = self._call(node, options, arguments)
            for name, result in zip(node.output, results, strict=False):
                self._add_constant(name, np.asarray(result))
        else:
            self.nodes.append((node, options))

    def _add_constant(self, name: str, array: Any) -> None:
        array = np.array(array)
        self.constants[name] = Constant(array, self.torch.from_numpy(array))

    def _call(self, node: Any, options: Mapping[str, Any], arguments: Sequence[Any]) -> tuple[Any, ...]:
        result = self.operators[node.op_type](options, *arguments)
        return result if isinstance(result, tuple) else (result,)

    def run(self, values: dict[str, Any]) -> None:
        """Compute every node; ``values`` begins with inputs and constants."""
        for node, options in self.nodes:
            arguments = [values[name] if name else None for name in node.input]
            results = self._call(node, options, arguments)
            values.update(zip(node.output, results, strict=False))
