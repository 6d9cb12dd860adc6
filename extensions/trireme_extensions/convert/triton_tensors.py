"""Adapt a graph to the tensors that Triton has, or refuse it with the next step.

Triton has no scalars: each tensor has at least one size, and in a batch at least one besides the batch. So a
scalar is served with the shape [1], by a node in the graph itself, which works for every backend. The same is
done with a tensor of one number for each record, such as a classifier's label. Triton has no sequences, maps
or optional tensors either; a graph with those is refused.

Exporters declare shapes that a graph does not return. What it returns in a run counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from sm.errors import CommandError
from trireme_extensions.convert.build_arguments import Range
from trireme_extensions.convert.graph_runner import SizeSearch, newest_ir_version, session
from trireme_extensions.convert.onnx_graph import (
    DATATYPES,
    ROWS,
    Graph,
    Value,
    data_names,
    inner_graphs,
    inner_tensors,
    take_in,
)
from trireme_extensions.convert.targets import link

#: Appended to the name of a scalar inside the graph.
INNER = "/scalar"
#: How to replace a type that Triton does not have.
ADVICE = {
    "sequence_type": "a sequence. Export the model with one tensor for each part"
    " (a scikit-learn classifier: options={'zipmap': False})",
    "map_type": "a map. Export the model without it (a scikit-learn classifier: options={'zipmap': False})",
    "optional_type": "optional. Export the model once with it, as a tensor, or once without it",
    "sparse_tensor_type": "a sparse tensor. Export the model with a dense one",
}


def adapt(
    path: Path,
    out: Path,
    say: Callable[[str], None],
    ranges: Callable[[Graph], Mapping[str, Range]] = lambda _: {},
) -> Path:
    """Return ``path``, or ``out`` with a graph whose tensors Triton has. Raises :class:`CommandError`.

    ``ranges`` returns the sizes that the request sets for a graph, by name.
    """
    graph = Graph.read(path)  # refuses a file that is not a graph, or whose weights are not there
    model = onnx.load(path, load_external_data=False)
    is_rewritten = _take_in_inner_tensors(model, path.parent) | _lower_ir_version(model, say)
    if is_rewritten:
        _save(model, path, out)
        graph = Graph.read(out)
    weights = {weight.name for weight in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    for value in (*inputs, *model.graph.output):
        _check_type(path, value)
    for value in inputs:
        if not value.type.tensor_type.HasField("shape"):
            raise CommandError(
                f"{path} does not say how many sizes {value.name} has: export the model with the shape of "
                "each input (a size that varies may have a name)."
            )
    corrected = _correct_outputs(model.graph, graph, ranges, say)
    if corrected:
        _save(model, path, out)
        graph = Graph.read(out)
    lifted = [
        *(_lift(model.graph, value, is_input=True) for value in inputs if _is_scalar(value)),
        *(_lift(model.graph, value, is_input=False) for value in model.graph.output if _is_scalar(value)),
    ]
    columns = [value for value in (*inputs, *model.graph.output) if graph.batched and _is_column(value)]
    for value in columns:
        _lift(model.graph, value, (-1,), is_input=any(value is other for other in inputs))
    if not (lifted or columns or corrected or is_rewritten):
        return path
    _save(model, path, out)
    if columns:
        names = ", ".join(value.name for value in columns)
        say(f"{names}: one number for each record; it is served with the shape [1]")
    if lifted:
        say(f"{', '.join(lifted)}: a scalar, which Triton does not support; it is served with the shape [1]")
    return out


def _take_in_inner_tensors(model: onnx.ModelProto, folder: Path) -> bool:
    """Load tensors of attributes that have a file beside the graph; False if there are none.

    ONNX Runtime refuses them if the file has hard links, as a cache's and a served model's have.
    """
    tensors = [tensor for tensor in inner_tensors(model) if tensor.external_data]
    for tensor in tensors:
        take_in(tensor, folder)
    return bool(tensors)


def _lower_ir_version(model: Any, say: Callable[[str], None]) -> bool:
    """Lower the version of the file format to one that ONNX Runtime reads; False if it reads it already.

    What only the newer version has, ONNX Runtime refuses by its own name.
    """
    version, newest = model.ir_version, newest_ir_version()
    if version <= newest:
        return False
    model.ir_version = newest
    say(f"the graph's IR version {version} is newer than ONNX Runtime's: it is written as {newest}")
    return True


def _check_type(path: Path, value: Any) -> None:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise CommandError(f"{path} cannot be served: {value.name} is {ADVICE.get(kind, 'no tensor')}.")
    element = value.type.tensor_type.elem_type
    if element not in DATATYPES:
        name = onnx.TensorProto.DataType.Name(element).lower()
        raise CommandError(
            f"{path} cannot be served: {value.name} is of type {name}, which Triton does not support. "
            "Add a Cast to the graph, or export the model with float32 inputs and outputs."
        )


def _is_scalar(value: Any) -> bool:
    kind = value.type.tensor_type
    return bool(kind.HasField("shape")) and not kind.shape.dim


def _is_column(value: Any) -> bool:
    """True for one number for each record: a tensor whose only size is the batch."""
    return len(value.type.tensor_type.shape.dim) == 1


def _lift(graph: Any, value: Any, sizes: tuple[int, ...] = (), *, is_input: bool) -> str:
    """Append a size of 1 to an input or output; ``sizes`` are those that the graph's own nodes see."""
    inner = value.name + INNER
    _rename(graph, value.name, inner, keep_outputs=is_input)
    shape = sizes if is_input else (*sizes, 1)
    tensor = onnx.helper.make_tensor(f"{inner}/shape", onnx.TensorProto.INT64, [len(shape)], shape)
    source, target = (value.name, inner) if is_input else (inner, value.name)
    nodes = [
        onnx.helper.make_node("Constant", [], [f"{inner}/shape"], value=tensor),
        onnx.helper.make_node("Reshape", [source, f"{inner}/shape"], [target]),
    ]
    for place, node in enumerate(nodes):
        graph.node.insert(place if is_input else len(graph.node), node)
    value.type.tensor_type.shape.dim.add(dim_value=1)
    return str(value.name)


def _rename(graph: Any, old: str, new: str, *, keep_outputs: bool) -> None:
    """Rename a value in all nodes, and in the branches and loops inside them."""
    for node in graph.node:
        names = [node.input] if keep_outputs else [node.input, node.output]
        for values in names:
            for place, name in enumerate(values):
                if name == old:
                    values[place] = new
        for inner in inner_graphs(node):
            _rename(inner, old, new, keep_outputs=keep_outputs)


def _correct_outputs(
    model: Any, graph: Graph, ranges: Callable[[Graph], Mapping[str, Range]], say: Callable[[str], None]
) -> bool:
    """Declare the shapes that outputs have in a run, where the graph declares others, or none as for the
    results of If. Return True if there was such an output.
    """
    values = {value.name: value.type.tensor_type for value in model.output}
    unknown = {name for name, value in values.items() if not value.HasField("shape")}
    try:
        search = SizeSearch(graph, session(graph.path, optimized=False), ranges(graph))
        search.find()
    except CommandError:
        if unknown:
            raise
        return False  # the trial of the finished graph has the same reason
    corrected = {
        output: sizes
        for output in graph.outputs
        if (sizes := _returned_sizes(graph, output, search.shapes)) != output.sizes or output.name in unknown
    }
    for output, sizes in corrected.items():
        if output.name not in unknown:
            served = [size if isinstance(size, int) else -1 for size in sizes]
            say(
                f"{output.name}: the graph declares {[*output.sizes]} and returned "
                f"{[*search.shapes[-1][output.name]]}; it is served as {served}"
                + (", without batches" if ROWS in sizes else "")
            )
        shape = values[output.name].shape
        shape.SetInParent()
        del shape.dim[:]
        for size in sizes:
            shape.dim.add(**{"dim_value" if isinstance(size, int) else "dim_param": size})
    return bool(corrected)


def _returned_sizes(
    graph: Graph, output: Value, answers: Sequence[Mapping[str, tuple[int, ...]]]
) -> tuple[int | str, ...]:
    """Return an output's declared sizes, with a free one for each that an answer contradicts."""
    returned = [shapes[output.name] for shapes in answers]
    rank = len(returned[-1])
    sizes: list[int | str] = [f"{output.name}.{place}" for place in range(rank)]
    if rank == len(output.sizes):
        for place, size in enumerate(output.sizes):
            if isinstance(size, str) or {shape[place] for shape in returned} == {size}:
                sizes[place] = size
    records = [shapes[graph.inputs[0].name][:1] for shapes in answers]
    may_batch = {value.shape[:1] for value in graph.inputs} == {(-1,)} and any(
        len(value.shape) > 1 for value in graph.inputs
    )
    if may_batch and sizes and isinstance(sizes[0], str) and [shape[:1] for shape in returned] != records:
        sizes[0] = ROWS
    return tuple(sizes)


def _save(model: Any, path: Path, out: Path) -> None:
    onnx.save(model, out)
    for name in data_names(model):
        if not (out.parent / name).exists():
            link(path.parent / name, out.parent / name)
