"""An ensemble as a graph: its inputs, steps and outputs, and the tensors between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sm.repository import config_files
from sm.repository.models import Model


@dataclass(frozen=True)
class Tensor:
    """What a configuration says of a tensor; ``shape`` is without the batch dimension, -1 is any size."""

    datatype: str
    shape: tuple[int, ...]
    batched: bool = False
    optional: bool = False

    @classmethod
    def of(cls, said: Any, batched: bool) -> Tensor:
        datatype = config_files.protobuf().DataType.Name(said.data_type).removeprefix("TYPE_")
        return cls(datatype, tuple(said.dims), batched, bool(getattr(said, "optional", False)))

    def __str__(self) -> str:
        return f"{self.datatype} {list(self.shape)}"


@dataclass(frozen=True)
class End:
    """Where a tensor of the ensemble leaves or enters a node. ``kind`` is None where nobody says."""

    tensor: str
    #: The model's own name for it.
    port: str
    kind: Tensor | None = None
    #: Whether the model is known to have no such input or output.
    absent: bool = False


@dataclass(frozen=True)
class Node:
    """``kind`` is ``input``, ``step``, ``output``, or ``nobody``: what gives a tensor that is read only."""

    kind: str
    title: str
    detail: str = ""
    reads: tuple[End, ...] = ()
    writes: tuple[End, ...] = ()


@dataclass(frozen=True)
class Edge:
    """A tensor on its way: from a node's ``writes`` to another's ``reads``, all by their places."""

    tensor: str
    source: int
    out: int
    target: int
    into: int


@dataclass(frozen=True)
class Ensemble:
    """One ensemble of a repository; the model of each step, None where it is not there, in ``models``."""

    model: Model
    nodes: tuple[Node, ...]
    models: Mapping[int, Model | None]

    @classmethod
    def read(cls, model: Model, others: Mapping[str, Model]) -> Ensemble:
        config = model.config
        assert config is not None
        batched = config.max_batch_size > 0
        inputs, outputs = ([(each.name, Tensor.of(each, batched)) for each in side] for side in _sides(model))
        steps = config.ensemble_scheduling.step
        nodes = [
            *(Node("input", name, "input", writes=(End(name, name, kind),)) for name, kind in inputs),
            *(_step(step, others.get(step.model_name)) for step in steps),
            *(Node("output", name, "output", reads=(End(name, name, kind),)) for name, kind in outputs),
        ]
        given = {end.tensor for node in nodes for end in node.writes}
        wanted = dict.fromkeys(end.tensor for node in nodes for end in node.reads)
        nobody = [
            Node("nobody", name, "given by nobody", writes=(End(name, name),))
            for name in wanted
            if name not in given
        ]
        models = {len(inputs) + place: others.get(step.model_name) for place, step in enumerate(steps)}
        return cls(model, (*nodes, *nobody), models)

    @property
    def name(self) -> str:
        return self.model.name

    def edges(self) -> Iterator[Edge]:
        """Every tensor's way, by its readers; from each of its writers, if there should be several."""
        for target, node in enumerate(self.nodes):
            for into, end in enumerate(node.reads):
                for source, out in self.writers(end.tensor):
                    yield Edge(end.tensor, source, out, target, into)

    def writers(self, tensor: str) -> list[tuple[int, int]]:
        """The nodes that give a tensor, and by which of their ``writes``."""
        return [
            (place, out)
            for place, node in enumerate(self.nodes)
            for out, end in enumerate(node.writes)
            if end.tensor == tensor
        ]


def is_ensemble(model: Model) -> bool:
    """Whether a model is scheduled as steps."""
    return model.config is not None and (model.backend == "ensemble" or bool(steps(model)))


def steps(model: Model) -> tuple[str, ...]:
    """The models that an ensemble asks, in its order."""
    said = model.config.ensemble_scheduling.step if model.config else ()
    return tuple(str(step.model_name) for step in said)


def read(models: Iterable[Model]) -> list[Ensemble]:
    """The ensembles among ``models``."""
    by_name = {model.name: model for model in models}
    return [Ensemble.read(model, by_name) for model in by_name.values() if is_ensemble(model)]


def tensors(model: Model) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A model's inputs and outputs by name; empty where Triton finds them out itself."""
    batched = bool(model.config and model.config.max_batch_size)
    inputs, outputs = ({each.name: Tensor.of(each, batched) for each in side} for side in _sides(model))
    return inputs, outputs


def _sides(model: Model) -> tuple[Sequence[Any], Sequence[Any]]:
    return (model.config.input, model.config.output) if model.config else ((), ())


def _step(step: Any, model: Model | None) -> Node:
    inputs, outputs = tensors(model) if model else ({}, {})
    return Node(
        "step",
        step.model_name,
        _detail(step, model),
        _ends(step.input_map, inputs),
        _ends(step.output_map, outputs),
    )


def _ends(mapped: Mapping[str, str], said: Mapping[str, Tensor]) -> tuple[End, ...]:
    """In the order of the model's configuration, what that has not at the end."""
    names = [*(name for name in said if name in mapped), *sorted(set(mapped) - set(said))]
    return tuple(End(mapped[name], name, said.get(name), bool(said) and name not in said) for name in names)


def _detail(step: Any, model: Model | None) -> str:
    if model is None:
        return "not there"
    version = step.model_version if step.model_version > 0 else max(model.served, default=None)
    number = f"version {version}" if version is not None else "no version"
    return f"{number} · {model.backend or '?'}"
