"""Find faults in how the steps of an ensemble are connected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sm.repository import ensembles
from sm.repository.ensembles import End, Ensemble, Tensor
from sm.repository.models import Model


@dataclass(frozen=True)
class Fault:
    """A fault: ``nodes`` that are wrong as such, and ``ends``, where tensors enter or leave a node."""

    sentence: str
    nodes: frozenset[int] = frozenset()
    ends: frozenset[tuple[int, str]] = frozenset()


def faults(ensemble: Ensemble, models: Mapping[str, Model]) -> list[Fault]:
    """Return all faults of an ensemble, each as a sentence that begins with its name."""
    return [
        *_missing(ensemble),
        *_absent_models(ensemble),
        *_unmapped(ensemble),
        *_unconnected(ensemble),
        *_written_twice(ensemble),
        *_unread(ensemble),
        *_different(ensemble),
        *_batches(ensemble),
        *_find_cycles(ensemble),
        *_calls_itself(ensemble, models),
    ]


def problems(models: Sequence[Model]) -> Iterator[str]:
    """Yield the sentences of all ensembles among ``models``."""
    by_name = {model.name: model for model in models}
    for ensemble in ensembles.read(models):
        file = ensemble.model.folder / "config.pbtxt"
        yield from dict.fromkeys(f"{file} {fault.sentence}." for fault in faults(ensemble, by_name))


def _missing(ensemble: Ensemble) -> Iterator[Fault]:
    for place, model in ensemble.models.items():
        if model is None:
            title = ensemble.nodes[place].title
            yield Fault(f"has a step of the model {title!r}, which is not there", frozenset({place}))


def _absent_models(ensemble: Ensemble) -> Iterator[Fault]:
    for place, model in ensemble.models.items():
        node, sides = ensemble.nodes[place], ensembles.tensors(model) if model else ({}, {})
        for word, ends, tensors in (("input", node.reads, sides[0]), ("output", node.writes, sides[1])):
            for end in ends:
                if end.absent:
                    yield Fault(
                        f"maps the {word} {end.port!r} of {node.title!r}, which has {', '.join(tensors)}",
                        ends=frozenset({(place, end.tensor)}),
                    )


def _unmapped(ensemble: Ensemble) -> Iterator[Fault]:
    for place, model in ensemble.models.items():
        node, inputs = ensemble.nodes[place], ensembles.tensors(model)[0] if model else {}
        needed = {name for name, tensor in inputs.items() if not tensor.optional}
        for name in sorted(needed - {end.port for end in node.reads}):
            yield Fault(f"gives nothing to the input {name!r} of {node.title!r}", frozenset({place}))


def _unconnected(ensemble: Ensemble) -> Iterator[Fault]:
    for place, node in enumerate(ensemble.nodes):
        if node.kind == "nobody":
            readers = [
                other.title for other in ensemble.nodes if any(e.tensor == node.title for e in other.reads)
            ]
            names = ", ".join(repr(name) for name in dict.fromkeys(readers))
            yield Fault(
                f"has nothing that gives the tensor {node.title!r}, which {names} wants",
                frozenset({place}),
                frozenset({(place, node.title)}),
            )


def _written_twice(ensemble: Ensemble) -> Iterator[Fault]:
    producers = [(end.tensor, place) for place, node in enumerate(ensemble.nodes) for end in node.writes]
    for tensor in dict.fromkeys(tensor for tensor, _ in producers):
        places = [place for other, place in producers if other == tensor]
        if len(places) > 1:
            names = " and ".join(repr(ensemble.nodes[place].title) for place in places)
            yield Fault(
                f"has the tensor {tensor!r} given by {names}",
                ends=frozenset((place, tensor) for place in places),
            )


def _unread(ensemble: Ensemble) -> Iterator[Fault]:
    """Tensors that no step reads; Triton refuses them."""
    consumed = {end.tensor for node in ensemble.nodes for end in node.reads}
    for place, node in enumerate(ensemble.nodes):
        for end in node.writes:
            if end.tensor not in consumed:
                yield Fault(
                    f"has nothing that takes the tensor {end.tensor!r} of {node.title!r}",
                    ends=frozenset({(place, end.tensor)}),
                )


def _different(ensemble: Ensemble) -> Iterator[Fault]:
    """Edges whose two sides differ; nothing is said if the writer's side is unknown."""
    for edge in ensemble.edges():
        giver, taker = ensemble.nodes[edge.source], ensemble.nodes[edge.target]
        produced, consumed = giver.writes[edge.out], taker.reads[edge.into]
        if produced.kind and consumed.kind and not _fit(produced.kind, consumed.kind):
            yield Fault(
                f"has the tensor {edge.tensor!r} as {produced.kind} from {_place(giver.title, produced)}, "
                f"but {_place(taker.title, consumed)} wants {consumed.kind}",
                ends=frozenset({(edge.target, edge.tensor)}),
            )


def _place(title: str, end: End) -> str:
    return repr(title) if title == end.port else f"{title!r} ({end.port})"


def _fit(produced: Tensor, consumed: Tensor) -> bool:
    """True if Triton connects the two: the same type, and compatible shapes with or without the batch
    dimension.
    """
    if produced.datatype != consumed.datatype:
        return False
    return _are_compatible(produced.shape, consumed.shape) or _are_compatible(
        _with_batch(produced), _with_batch(consumed)
    )


def _are_compatible(first: Sequence[int], second: Sequence[int]) -> bool:
    return len(first) == len(second) and all(
        a == b or -1 in (a, b) for a, b in zip(first, second, strict=True)
    )


def _with_batch(tensor: Tensor) -> tuple[int, ...]:
    return (-1, *tensor.shape) if tensor.batched else tensor.shape


def _batches(ensemble: Ensemble) -> Iterator[Fault]:
    most = ensemble.model.config.max_batch_size if ensemble.model.config else 0
    for place, model in ensemble.models.items():
        if model and model.config and ensembles.tensors(model)[0] and model.config.max_batch_size < most:
            yield Fault(
                f"takes batches of {most}, but its step {model.name!r} takes {model.config.max_batch_size}",
                frozenset({place}),
            )


def _find_cycles(ensemble: Ensemble) -> Iterator[Fault]:
    """Find steps that wait for each other; all of them are one fault."""
    ways: dict[int, set[int]] = {}
    for edge in ensemble.edges():
        ways.setdefault(edge.source, set()).add(edge.target)
    circle = sorted(place for place in ways if place in reachable(ways, place))
    if circle:
        names = " and ".join(repr(ensemble.nodes[place].title) for place in circle)
        within = {
            (edge.target, edge.tensor)
            for edge in ensemble.edges()
            if edge.source in circle and edge.target in reachable(ways, edge.source) & set(circle)
        }
        clause = "wait for each other" if len(circle) > 1 else "waits for itself"
        yield Fault(f"has a circle: {names} {clause}", frozenset(circle), frozenset(within))


def reachable(ways: Mapping[int, set[int]], start: int) -> set[int]:
    """Return the nodes that can be reached from ``start``."""
    visited: set[int] = set()
    todo = list(ways.get(start, ()))
    while todo:
        place = todo.pop()
        if place not in visited:
            visited.add(place)
            todo += ways.get(place, ())
    return visited


def _calls_itself(ensemble: Ensemble, models: Mapping[str, Model]) -> Iterator[Fault]:
    for place, model in ensemble.models.items():
        if model and ensemble.name in _inputs_asked_for(model.name, models):
            yield Fault(
                f"has a step {model.name!r} that asks {ensemble.name!r} again, without end",
                frozenset({place}),
            )


def _inputs_asked_for(name: str, models: Mapping[str, Model]) -> set[str]:
    """Return a model and, recursively, the models of its steps."""
    visited: set[str] = set()
    todo = [name]
    while todo:
        model_name = todo.pop()
        if model_name not in visited and model_name in models:
            visited.add(model_name)
            todo += ensembles.steps(models[model_name])
    return visited
