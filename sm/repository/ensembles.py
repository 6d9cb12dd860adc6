"""An ensemble as a graph, and the faults in how it connects its steps.

The nodes are its inputs, steps and outputs, and the edges are tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from sm.repository.models import Model, protobuf

#: The name of a node in a graph of steps: its index or its text.
Name = TypeVar("Name", int, str)


class Tensor(NamedTuple):
    """An input or output in a model's configuration."""

    #: Triton's name, such as ``FP32``.
    datatype: str
    #: The sizes without the batch dimension; -1 is any size.
    shape: tuple[int, ...]
    #: True if the model has a batch dimension.
    batched: bool
    optional: bool

    def __str__(self) -> str:
        return f"{self.datatype} {list(self.shape)}"


class End(NamedTuple):
    """Where a tensor enters or leaves a node."""

    #: The ensemble's name for the tensor.
    tensor: str
    #: The model's own name for the tensor.
    port: str
    #: None if the type is unknown.
    kind: Tensor | None = None


@dataclass(frozen=True)
class Node:
    """An input, a step or an output of the ensemble, or the missing source of a tensor."""

    #: ``input``, ``step``, ``output``; ``nobody`` for a missing source.
    kind: str
    #: The model of a step, else the name of the tensor.
    title: str
    reads: tuple[End, ...] = ()
    writes: tuple[End, ...] = ()
    #: The model of a step; None if the repository lacks it.
    model: Model | None = None


class Edge(NamedTuple):
    """A tensor from one node to another, by their indices."""

    source: int
    out: End
    target: int
    into: End


@dataclass(frozen=True)
class Ensemble:
    """An ensemble as a graph."""

    #: The ensemble itself.
    model: Model
    nodes: tuple[Node, ...]

    @classmethod
    def read(cls, model: Model, others: Mapping[str, Model]) -> Ensemble:
        """Read an ensemble's configuration; ``others`` are the repository's models by name."""
        inputs, outputs = tensors(model)
        assert model.config is not None
        nodes = [
            *(Node("input", name, writes=(End(name, name, kind),)) for name, kind in inputs.items()),
            *(
                _step_node(step, others.get(step.model_name))
                for step in model.config.ensemble_scheduling.step
            ),
            *(Node("output", name, reads=(End(name, name, kind),)) for name, kind in outputs.items()),
        ]
        written = {end.tensor for node in nodes for end in node.writes}
        read_tensors = dict.fromkeys(end.tensor for node in nodes for end in node.reads)
        missing_sources = [
            Node("nobody", name, writes=(End(name, name),)) for name in read_tensors if name not in written
        ]
        return cls(model, (*nodes, *missing_sources))

    @property
    def name(self) -> str:
        return self.model.name

    def edges(self) -> Iterator[Edge]:
        """Yield an edge for each reader and each writer of a tensor. A valid tensor has one writer."""
        for target, node in enumerate(self.nodes):
            for into in node.reads:
                for source, writer in enumerate(self.nodes):
                    yield from (
                        Edge(source, out, target, into) for out in writer.writes if out.tensor == into.tensor
                    )


def is_ensemble(model: Model) -> bool:
    """True if the model's scheduling is a list of steps."""
    return model.config is not None and (model.backend == "ensemble" or bool(steps(model)))


def steps(model: Model) -> tuple[str, ...]:
    """Return the models of an ensemble's steps, in order."""
    scheduled = model.config.ensemble_scheduling.step if model.config else ()
    return tuple(str(step.model_name) for step in scheduled)


def read(models: Iterable[Model]) -> list[Ensemble]:
    """Return the ensembles among ``models``."""
    by_name = {model.name: model for model in models}
    return [Ensemble.read(model, by_name) for model in by_name.values() if is_ensemble(model)]


def tensors(model: Model | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return a model's inputs and outputs by name; empty if Triton derives them itself."""
    config = model.config if model else None
    if config is None:
        return {}, {}
    inputs, outputs = (
        {
            tensor.name: Tensor(
                protobuf().DataType.Name(tensor.data_type).removeprefix("TYPE_"),
                tuple(tensor.dims),
                config.max_batch_size > 0,
                bool(getattr(tensor, "optional", False)),
            )
            for tensor in side
        }
        for side in (config.input, config.output)
    )
    return inputs, outputs


def _step_node(step: Any, model: Model | None) -> Node:
    inputs, outputs = tensors(model)
    reads, writes = _ends(step.input_map, inputs), _ends(step.output_map, outputs)
    return Node("step", step.model_name, reads, writes, model)


def _ends(mapped: Mapping[str, str], known: Mapping[str, Tensor]) -> tuple[End, ...]:
    """Return the ends of a step in the order of its model's configuration; unknown ones come last."""
    names = [*(name for name in known if name in mapped), *sorted(set(mapped) - set(known))]
    return tuple(End(mapped[name], name, known.get(name)) for name in names)


def problems(models: Sequence[Model]) -> Iterator[str]:
    """Yield a sentence for each fault of each ensemble among ``models``."""
    by_name = {model.name: model for model in models}
    for ensemble in read(models):
        file = ensemble.model.shown("config.pbtxt")
        yield from dict.fromkeys(f"{file} {fault}." for fault in faults(ensemble, by_name))


def faults(ensemble: Ensemble, models: Mapping[str, Model]) -> Iterator[str]:
    """Yield all faults of an ensemble. Each continues the path of the file, without a full stop."""
    calls = {name: steps(model) for name, model in models.items()}
    batch = ensemble.model.config.max_batch_size if ensemble.model.config else 0
    for node in ensemble.nodes:
        if node.kind == "step":
            yield from _faults_of_step(node, batch)
            if node.model and ensemble.name in (node.title, *reachable(calls, node.title)):
                yield f"has a step {node.title!r} that asks {ensemble.name!r} again, without end"
    yield from _faults_of_tensors(ensemble.nodes)
    for edge in ensemble.edges():
        written, wanted = edge.out.kind, edge.into.kind
        if written and wanted and not _can_connect(written, wanted):
            writer, reader = (
                repr(node.title) if node.title == end.port else f"{node.title!r} ({end.port})"
                for node, end in (
                    (ensemble.nodes[edge.source], edge.out),
                    (ensemble.nodes[edge.target], edge.into),
                )
            )
            tensor = edge.out.tensor
            yield f"has the tensor {tensor!r} as {written} from {writer}, but {reader} wants {wanted}"
    yield from _cycles(ensemble)


def _faults_of_step(node: Node, batch: int) -> Iterator[str]:
    """Yield what does not fit between a step and its model."""
    model = node.model
    if model is None:
        yield f"has a step of the model {node.title!r}, which is not there"
        return
    inputs, outputs = tensors(model)
    for side, ends, known in (("input", node.reads, inputs), ("output", node.writes, outputs)):
        for end in ends:
            if known and end.port not in known:
                yield f"maps the {side} {end.port!r} of {node.title!r}, which has {', '.join(known)}"
    required = {name for name, tensor in inputs.items() if not tensor.optional}
    for name in sorted(required - {end.port for end in node.reads}):
        yield f"gives nothing to the input {name!r} of {node.title!r}"
    if inputs and model.config and model.config.max_batch_size < batch:
        yield f"takes batches of {batch}, but its step {model.name!r} takes {model.config.max_batch_size}"


def _faults_of_tensors(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield tensors that not exactly one node writes, or that none reads. Triton refuses them."""
    readers: dict[str, list[str]] = {}
    writers: dict[str, list[str]] = {}
    for node in nodes:
        for end in node.reads:
            readers.setdefault(end.tensor, []).append(repr(node.title))
        for end in node.writes:
            writers.setdefault(end.tensor, []).append(repr(node.title))
        if node.kind == "nobody":
            names = ", ".join(dict.fromkeys(readers[node.title]))
            yield f"has nothing that gives the tensor {node.title!r}, which {names} wants"
    for tensor, names_of_writers in writers.items():
        if len(names_of_writers) > 1:
            yield f"has the tensor {tensor!r} given by {' and '.join(names_of_writers)}"
        if tensor not in readers:
            yield from (
                f"has nothing that takes the tensor {tensor!r} of {name}" for name in names_of_writers
            )


def _can_connect(written: Tensor, read: Tensor) -> bool:
    """True if Triton connects an output to an input: the same type, and compatible shapes.

    The shapes may match with or without the batch dimension.
    """
    with_batch = ((-1, *tensor.shape) if tensor.batched else tensor.shape for tensor in (written, read))
    return written.datatype == read.datatype and (
        _are_compatible(written.shape, read.shape) or _are_compatible(*with_batch)
    )


def _are_compatible(first: Sequence[int], second: Sequence[int]) -> bool:
    return len(first) == len(second) and all(
        a == b or -1 in (a, b) for a, b in zip(first, second, strict=True)
    )


def _cycles(ensemble: Ensemble) -> Iterator[str]:
    """Yield one fault for all steps that wait for each other."""
    targets: dict[int, set[int]] = {}
    for edge in ensemble.edges():
        targets.setdefault(edge.source, set()).add(edge.target)
    cycle = sorted(index for index in targets if index in reachable(targets, index))
    if cycle:
        names = " and ".join(repr(ensemble.nodes[index].title) for index in cycle)
        yield f"has a circle: {names} {'wait for each other' if len(cycle) > 1 else 'waits for itself'}"


def reachable(targets: Mapping[Name, Iterable[Name]], start: Name) -> set[Name]:
    """Return the nodes that can be reached from ``start``; ``targets`` has those of each node's edges."""
    visited: set[Name] = set()
    todo = list(targets.get(start, ()))
    while todo:
        name = todo.pop()
        if name not in visited:
            visited.add(name)
            todo += targets.get(name, ())
    return visited
