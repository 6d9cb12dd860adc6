"""Find faults in how the steps of an ensemble are connected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sm.repository import ensembles
from sm.repository.ensembles import End, Ensemble, Tensor
from sm.repository.models import Model


@dataclass(frozen=True)
class Fault:
    """``nodes`` are at fault as such; ``ends`` are tensors where they enter or leave a node."""

    sentence: str
    nodes: frozenset[int] = frozenset()
    ends: frozenset[tuple[int, str]] = frozenset()


def faults(ensemble: Ensemble, models: Mapping[str, Model]) -> list[Fault]:
    """All of one ensemble: what it does, for a sentence that begins with its name."""
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
    """The sentences of all ensembles among ``models``."""
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
        for word, ends, said in (("input", node.reads, sides[0]), ("output", node.writes, sides[1])):
            for end in ends:
                if end.absent:
                    yield Fault(
                        f"maps the {word} {end.port!r} of {node.title!r}, which has {', '.join(said)}",
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
                each.title for each in ensemble.nodes if any(e.tensor == node.title for e in each.reads)
            ]
            names = ", ".join(repr(name) for name in dict.fromkeys(readers))
            yield Fault(
                f"has nothing that gives the tensor {node.title!r}, which {names} wants",
                frozenset({place}),
                frozenset({(place, node.title)}),
            )


def _written_twice(ensemble: Ensemble) -> Iterator[Fault]:
    given = [(end.tensor, place) for place, node in enumerate(ensemble.nodes) for end in node.writes]
    for tensor in dict.fromkeys(tensor for tensor, _ in given):
        places = [place for each, place in given if each == tensor]
        if len(places) > 1:
            names = " and ".join(repr(ensemble.nodes[place].title) for place in places)
            yield Fault(
                f"has the tensor {tensor!r} given by {names}",
                ends=frozenset((place, tensor) for place in places),
            )


def _unread(ensemble: Ensemble) -> Iterator[Fault]:
    """Triton insists that everything is for something."""
    wanted = {end.tensor for node in ensemble.nodes for end in node.reads}
    for place, node in enumerate(ensemble.nodes):
        for end in node.writes:
            if end.tensor not in wanted:
                yield Fault(
                    f"has nothing that takes the tensor {end.tensor!r} of {node.title!r}",
                    ends=frozenset({(place, end.tensor)}),
                )


def _different(ensemble: Ensemble) -> Iterator[Fault]:
    """An edge's two sides; where the giver's is not known, nothing can be said."""
    for edge in ensemble.edges():
        giver, taker = ensemble.nodes[edge.source], ensemble.nodes[edge.target]
        given, taken = giver.writes[edge.out], taker.reads[edge.into]
        if given.kind and taken.kind and not _fit(given.kind, taken.kind):
            yield Fault(
                f"has the tensor {edge.tensor!r} as {given.kind} from {_place(giver.title, given)}, but "
                f"{_place(taker.title, taken)} wants {taken.kind}",
                ends=frozenset({(edge.target, edge.tensor)}),
            )


def _place(title: str, end: End) -> str:
    return repr(title) if title == end.port else f"{title!r} ({end.port})"


def _fit(given: Tensor, taken: Tensor) -> bool:
    """As Triton has it: of one type, and of shapes that may be one, with or without the batch dimension."""
    if given.datatype != taken.datatype:
        return False
    return _alike(given.shape, taken.shape) or _alike(_whole(given), _whole(taken))


def _alike(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))


def _whole(tensor: Tensor) -> tuple[int, ...]:
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
    """Steps that wait for each other; one fault for all that do."""
    ways: dict[int, set[int]] = {}
    for edge in ensemble.edges():
        ways.setdefault(edge.source, set()).add(edge.target)
    circle = sorted(place for place in ways if place in reached(ways, place))
    if circle:
        names = " and ".join(repr(ensemble.nodes[place].title) for place in circle)
        within = {
            (edge.target, edge.tensor)
            for edge in ensemble.edges()
            if edge.source in circle and edge.target in reached(ways, edge.source) & set(circle)
        }
        said = "wait for each other" if len(circle) > 1 else "waits for itself"
        yield Fault(f"has a circle: {names} {said}", frozenset(circle), frozenset(within))


def reached(ways: Mapping[int, set[int]], start: int) -> set[int]:
    """Where one comes from ``start``."""
    seen: set[int] = set()
    todo = list(ways.get(start, ()))
    while todo:
        place = todo.pop()
        if place not in seen:
            seen.add(place)
            todo += ways.get(place, ())
    return seen


def _calls_itself(ensemble: Ensemble, models: Mapping[str, Model]) -> Iterator[Fault]:
    for place, model in ensemble.models.items():
        if model and ensemble.name in _inputs_asked_for(model.name, models):
            yield Fault(
                f"has a step {model.name!r} that asks {ensemble.name!r} again, without end",
                frozenset({place}),
            )


def _inputs_asked_for(name: str, models: Mapping[str, Model]) -> set[str]:
    """A model and all that are its steps, or theirs."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        each = todo.pop()
        if each not in seen and each in models:
            seen.add(each)
            todo += ensembles.steps(models[each])
    return seen
