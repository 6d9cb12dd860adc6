"""Find faults in how an ensemble connects its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sm.repository import ensembles
from sm.repository.ensembles import End, Ensemble, Tensor
from sm.repository.models import Model


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
    for ensemble in ensembles.read(models):
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
        inputs, outputs = ensembles.tensors(model) if model else ({}, {})
        for side, ends, tensors in (("input", node.reads, inputs), ("output", node.writes, outputs)):
            for end in ends:
                if end.absent:
                    yield Fault(
                        f"maps the {side} {end.port!r} of {node.title!r}, which has {', '.join(tensors)}",
                        ends=frozenset({(index, end.tensor)}),
                    )


def _unmapped_inputs(ensemble: Ensemble) -> Iterator[Fault]:
    """Yield required inputs that a step does not map."""
    for index, model in ensemble.models.items():
        node, inputs = ensemble.nodes[index], ensembles.tensors(model)[0] if model else {}
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
        if model and model.config and ensembles.tensors(model)[0] and model.config.max_batch_size < batch:
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


def reachable(targets: Mapping[int, set[int]], start: int) -> set[int]:
    """Return the nodes that can be reached from ``start``; ``targets`` has those of each node's edges."""
    visited: set[int] = set()
    todo = list(targets.get(start, ()))
    while todo:
        index = todo.pop()
        if index not in visited:
            visited.add(index)
            todo += targets.get(index, ())
    return visited


def _endless_calls(ensemble: Ensemble, models: Mapping[str, Model]) -> Iterator[Fault]:
    """Yield steps that run the ensemble itself, also through other ensembles."""
    for index, model in ensemble.models.items():
        if model and ensemble.name in _models_below(model.name, models):
            yield Fault(
                f"has a step {model.name!r} that asks {ensemble.name!r} again, without end",
                frozenset({index}),
            )


def _models_below(name: str, models: Mapping[str, Model]) -> set[str]:
    """Return a model and, recursively, the models of its steps."""
    visited: set[str] = set()
    todo = [name]
    while todo:
        model_name = todo.pop()
        if model_name not in visited and model_name in models:
            visited.add(model_name)
            todo += ensembles.steps(models[model_name])
    return visited
