"""An ensemble as a graph, and the faults in how it connects its steps.

The nodes are its inputs, steps and outputs, and the edges are tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sm.repository.models import Model, protobuf

#: Of a node.
Name = TypeVar("Name", int, str)


@dataclass(frozen=True)
class Tensor:
    """An input or output in a model's configuration."""

    #: Triton's name, such as ``FP32``.
    datatype: str
    #: Without the batch dimension; -1 is any size.
    shape: tuple[int, ...]
    #: True if the model has a batch dimension.
    batched: bool = False
    optional: bool = False

    @classmethod
    def of(cls, config: Any, batched: bool) -> Tensor:
        """Read a ``ModelInput`` or ``ModelOutput``."""
        datatype = protobuf().DataType.Name(config.data_type).removeprefix("TYPE_")
        return cls(datatype, tuple(config.dims), batched, bool(getattr(config, "optional", False)))

    def __str__(self) -> str:
        return f"{self.datatype} {list(self.shape)}"


@dataclass(frozen=True)
class End:
    """Where a tensor enters or leaves a node."""

    #: The ensemble's name for the tensor.
    tensor: str
    #: The model's own name for the tensor.
    port: str
    #: None if the type is unknown.
    kind: Tensor | None = None
    #: True if the model is known to have no such input or output.
    absent: bool = False


@dataclass(frozen=True)
class Node:
    """An input, a step or an output of the ensemble, or the missing source of a tensor."""

    #: ``input``, ``step``, ``output``; ``nobody`` for a missing source.
    kind: str
    #: The model of a step, else the name of the tensor.
    title: str
    #: A second line for drawings.
    detail: str = ""
    reads: tuple[End, ...] = ()
    writes: tuple[End, ...] = ()


@dataclass(frozen=True)
class Edge:
    """A tensor from one node to another."""

    tensor: str
    #: The index of the node that writes it, and the index in that node's ``writes``.
    source: int
    out: int
    #: The index of the node that reads it, and the index in that node's ``reads``.
    target: int
    into: int


@dataclass(frozen=True)
class Ensemble:
    """An ensemble as a graph."""

    #: The ensemble itself.
    model: Model
    nodes: tuple[Node, ...]
    #: The model of each step by the index of its node; None if the repository lacks it.
    models: Mapping[int, Model | None]

    @classmethod
    def read(cls, model: Model, others: Mapping[str, Model]) -> Ensemble:
        """Read an ensemble's configuration; ``others`` are the repository's models by name."""
        config = model.config
        assert config is not None
        batched = config.max_batch_size > 0
        inputs, outputs = (
            [(tensor.name, Tensor.of(tensor, batched)) for tensor in side] for side in _sides(model)
        )
        steps = config.ensemble_scheduling.step
        nodes = [
            *(Node("input", name, "input", writes=(End(name, name, kind),)) for name, kind in inputs),
            *(_step_node(step, others.get(step.model_name)) for step in steps),
            *(Node("output", name, "output", reads=(End(name, name, kind),)) for name, kind in outputs),
        ]
        written = {end.tensor for node in nodes for end in node.writes}
        read_tensors = dict.fromkeys(end.tensor for node in nodes for end in node.reads)
        missing_sources = [
            Node("nobody", name, "given by nobody", writes=(End(name, name),))
            for name in read_tensors
            if name not in written
        ]
        models = {len(inputs) + index: others.get(step.model_name) for index, step in enumerate(steps)}
        return cls(model, (*nodes, *missing_sources), models)

    @property
    def name(self) -> str:
        return self.model.name

    def edges(self) -> Iterator[Edge]:
        """Yield an edge for each reader and each writer of a tensor. A valid tensor has one writer."""
        for target, node in enumerate(self.nodes):
            for into, end in enumerate(node.reads):
                for source, out in self.writers(end.tensor):
                    yield Edge(end.tensor, source, out, target, into)

    def writers(self, tensor: str) -> list[tuple[int, int]]:
        """Return the nodes that write a tensor, with the index in their ``writes``."""
        return [
            (index, out)
            for index, node in enumerate(self.nodes)
            for out, end in enumerate(node.writes)
            if end.tensor == tensor
        ]


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


def tensors(model: Model) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return a model's inputs and outputs by name; empty if Triton derives them itself."""
    batched = bool(model.config and model.config.max_batch_size)
    inputs, outputs = ({tensor.name: Tensor.of(tensor, batched) for tensor in side} for side in _sides(model))
    return inputs, outputs


def _sides(model: Model) -> tuple[Sequence[Any], Sequence[Any]]:
    return (model.config.input, model.config.output) if model.config else ((), ())


def _step_node(step: Any, model: Model | None) -> Node:
    inputs, outputs = tensors(model) if model else ({}, {})
    return Node(
        "step",
        step.model_name,
        _describe_version(step, model),
        _connected_ends(step.input_map, inputs),
        _connected_ends(step.output_map, outputs),
    )


def _connected_ends(mapped: Mapping[str, str], tensors: Mapping[str, Tensor]) -> tuple[End, ...]:
    """Return the ends of a step in the order of its model's configuration; unknown ones come last."""
    names = [*(name for name in tensors if name in mapped), *sorted(set(mapped) - set(tensors))]
    return tuple(
        End(mapped[name], name, tensors.get(name), bool(tensors) and name not in tensors) for name in names
    )


def _describe_version(step: Any, model: Model | None) -> str:
    if model is None:
        return "not there"
    version = step.model_version if step.model_version > 0 else max(model.served, default=None)
    number = f"version {version}" if version is not None else "no version"
    return f"{number} · {model.backend or '?'}"


@dataclass(frozen=True)
class Fault:
    """A fault, and where it is in the graph. Nodes are given by their index."""

    #: Continues the path of the configuration file, without a full stop.
    sentence: str
    #: Nodes that are wrong themselves.
    nodes: frozenset[int] = frozenset()
    #: A node and a tensor that is wrong where it enters or leaves that node.
    ends: frozenset[tuple[int, str]] = frozenset()


def faults(ensemble: Ensemble, models: Mapping[str, Model]) -> list[Fault]:
    """Return all faults of an ensemble."""
    return [
        *_missing_models(ensemble),
        *_unknown_tensors(ensemble),
        *_unmapped_inputs(ensemble),
        *_tensors_without_source(ensemble),
        *_tensors_written_twice(ensemble),
        *_unread_tensors(ensemble),
        *_mismatched_tensors(ensemble),
        *_too_small_batches(ensemble),
        *_cycles(ensemble),
        *_endless_calls(ensemble, models),
    ]


def problems(models: Sequence[Model]) -> Iterator[str]:
    """Yield a sentence for each fault of each ensemble among ``models``."""
    by_name = {model.name: model for model in models}
    for ensemble in read(models):
        file = ensemble.model.folder / "config.pbtxt"
        yield from dict.fromkeys(f"{file} {fault.sentence}." for fault in faults(ensemble, by_name))


def _missing_models(ensemble: Ensemble) -> Iterator[Fault]:
    """Yield steps whose model the repository lacks."""
    for index, model in ensemble.models.items():
        if model is None:
            title = ensemble.nodes[index].title
            yield Fault(f"has a step of the model {title!r}, which is not there", frozenset({index}))


def _unknown_tensors(ensemble: Ensemble) -> Iterator[Fault]:
    """Yield mapped inputs and outputs that a step's model does not have."""
    for index, model in ensemble.models.items():
        node = ensemble.nodes[index]
        inputs, outputs = tensors(model) if model else ({}, {})
        for side, ends, known in (("input", node.reads, inputs), ("output", node.writes, outputs)):
            for end in ends:
                if end.absent:
                    yield Fault(
                        f"maps the {side} {end.port!r} of {node.title!r}, which has {', '.join(known)}",
                        ends=frozenset({(index, end.tensor)}),
                    )


def _unmapped_inputs(ensemble: Ensemble) -> Iterator[Fault]:
    """Yield required inputs that a step does not map."""
    for index, model in ensemble.models.items():
        node, inputs = ensemble.nodes[index], tensors(model)[0] if model else {}
        required = {name for name, tensor in inputs.items() if not tensor.optional}
        for name in sorted(required - {end.port for end in node.reads}):
            yield Fault(f"gives nothing to the input {name!r} of {node.title!r}", frozenset({index}))


def _tensors_without_source(ensemble: Ensemble) -> Iterator[Fault]:
    """Yield tensors that a node reads and no node writes."""
    for index, node in enumerate(ensemble.nodes):
        if node.kind == "nobody":
            readers = [
                other.title
                for other in ensemble.nodes
                if any(end.tensor == node.title for end in other.reads)
            ]
            names = ", ".join(repr(name) for name in dict.fromkeys(readers))
            yield Fault(
                f"has nothing that gives the tensor {node.title!r}, which {names} wants",
                frozenset({index}),
                frozenset({(index, node.title)}),
            )


def _tensors_written_twice(ensemble: Ensemble) -> Iterator[Fault]:
    """Yield tensors that several nodes write."""
    writers = [(end.tensor, index) for index, node in enumerate(ensemble.nodes) for end in node.writes]
    for tensor in dict.fromkeys(tensor for tensor, _ in writers):
        indexes = [index for other, index in writers if other == tensor]
        if len(indexes) > 1:
            names = " and ".join(repr(ensemble.nodes[index].title) for index in indexes)
            yield Fault(
                f"has the tensor {tensor!r} given by {names}",
                ends=frozenset((index, tensor) for index in indexes),
            )


def _unread_tensors(ensemble: Ensemble) -> Iterator[Fault]:
    """Yield tensors that no node reads. Triton refuses them."""
    read_tensors = {end.tensor for node in ensemble.nodes for end in node.reads}
    for index, node in enumerate(ensemble.nodes):
        for end in node.writes:
            if end.tensor not in read_tensors:
                yield Fault(
                    f"has nothing that takes the tensor {end.tensor!r} of {node.title!r}",
                    ends=frozenset({(index, end.tensor)}),
                )


def _mismatched_tensors(ensemble: Ensemble) -> Iterator[Fault]:
    """Yield tensors whose type or shape differs between writer and reader, if both are known."""
    for edge in ensemble.edges():
        writer, reader = ensemble.nodes[edge.source], ensemble.nodes[edge.target]
        written, read = writer.writes[edge.out], reader.reads[edge.into]
        if written.kind and read.kind and not _can_connect(written.kind, read.kind):
            yield Fault(
                f"has the tensor {edge.tensor!r} as {written.kind} from "
                f"{_describe_end(writer.title, written)}, but {_describe_end(reader.title, read)} wants "
                f"{read.kind}",
                ends=frozenset({(edge.target, edge.tensor)}),
            )


def _describe_end(title: str, end: End) -> str:
    """Name a node, and its own name for the tensor if that differs."""
    return repr(title) if title == end.port else f"{title!r} ({end.port})"


def _can_connect(written: Tensor, read: Tensor) -> bool:
    """True if Triton connects an output to an input: the same type, and compatible shapes.

    The shapes may match with or without the batch dimension.
    """
    if written.datatype != read.datatype:
        return False
    return _are_compatible(written.shape, read.shape) or _are_compatible(
        _with_batch(written), _with_batch(read)
    )


def _are_compatible(first: Sequence[int], second: Sequence[int]) -> bool:
    return len(first) == len(second) and all(
        a == b or -1 in (a, b) for a, b in zip(first, second, strict=True)
    )


def _with_batch(tensor: Tensor) -> tuple[int, ...]:
    return (-1, *tensor.shape) if tensor.batched else tensor.shape


def _too_small_batches(ensemble: Ensemble) -> Iterator[Fault]:
    """Yield steps whose models take smaller batches than the ensemble."""
    batch = ensemble.model.config.max_batch_size if ensemble.model.config else 0
    for index, model in ensemble.models.items():
        if model and model.config and tensors(model)[0] and model.config.max_batch_size < batch:
            yield Fault(
                f"takes batches of {batch}, but its step {model.name!r} takes {model.config.max_batch_size}",
                frozenset({index}),
            )


def _cycles(ensemble: Ensemble) -> Iterator[Fault]:
    """Yield one fault for all steps that wait for each other."""
    targets: dict[int, set[int]] = {}
    for edge in ensemble.edges():
        targets.setdefault(edge.source, set()).add(edge.target)
    cycle = sorted(index for index in targets if index in reachable(targets, index))
    if cycle:
        names = " and ".join(repr(ensemble.nodes[index].title) for index in cycle)
        within = {
            (edge.target, edge.tensor)
            for edge in ensemble.edges()
            if edge.source in cycle and edge.target in reachable(targets, edge.source) & set(cycle)
        }
        clause = "wait for each other" if len(cycle) > 1 else "waits for itself"
        yield Fault(f"has a circle: {names} {clause}", frozenset(cycle), frozenset(within))


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


def _endless_calls(ensemble: Ensemble, models: Mapping[str, Model]) -> Iterator[Fault]:
    """Yield steps that run the ensemble itself, also through other ensembles."""
    calls = {name: steps(model) for name, model in models.items()}
    for index, model in ensemble.models.items():
        if model and ensemble.name in (model.name, *reachable(calls, model.name)):
            yield Fault(
                f"has a step {model.name!r} that asks {ensemble.name!r} again, without end",
                frozenset({index}),
            )
