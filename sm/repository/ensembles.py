"""An ensemble as a graph: its inputs, steps and outputs, and the tensors between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sm.repository import config_files
from sm.repository.models import Model


@dataclass(frozen=True)
class Tensor:
    """A tensor in a configuration. ``shape`` has no batch dimension; -1 is any size."""

    datatype: str
    shape: tuple[int, ...]
    batched: bool = False
    optional: bool = False

    @classmethod
    def of(cls, declared: Any, batched: bool) -> Tensor:
        datatype = config_files.protobuf().DataType.Name(declared.data_type).removeprefix("TYPE_")
        return cls(datatype, tuple(declared.dims), batched, bool(getattr(declared, "optional", False)))

    def __str__(self) -> str:
        return f"{self.datatype} {list(self.shape)}"


@dataclass(frozen=True)
class End:
    """Where a tensor enters or leaves a node. ``kind`` is None if the type is unknown."""

    tensor: str
    #: The model's own name for the tensor.
    port: str
    kind: Tensor | None = None
    #: True if the model is known to have no such input or output.
    absent: bool = False


@dataclass(frozen=True)
class Node:
    """``kind`` is ``input``, ``step``, ``output`` or ``nobody``, which stands for the missing source of a
    tensor.
    """

    kind: str
    title: str
    detail: str = ""
    reads: tuple[End, ...] = ()
    writes: tuple[End, ...] = ()


@dataclass(frozen=True)
class Edge:
    """A tensor between two nodes, from one's ``writes`` to the other's ``reads``; all four are indexes."""

    tensor: str
    source: int
    out: int
    target: int
    into: int


@dataclass(frozen=True)
class Ensemble:
    """An ensemble. ``models`` has the model of each step, None if the repository lacks it."""

    model: Model
    nodes: tuple[Node, ...]
    models: Mapping[int, Model | None]

    @classmethod
    def read(cls, model: Model, others: Mapping[str, Model]) -> Ensemble:
        config = model.config
        assert config is not None
        batched = config.max_batch_size > 0
        inputs, outputs = (
            [(tensor.name, Tensor.of(tensor, batched)) for tensor in side] for side in _sides(model)
        )
        steps = config.ensemble_scheduling.step
        nodes = [
            *(Node("input", name, "input", writes=(End(name, name, kind),)) for name, kind in inputs),
            *(_step(step, others.get(step.model_name)) for step in steps),
            *(Node("output", name, "output", reads=(End(name, name, kind),)) for name, kind in outputs),
        ]
        produced = {end.tensor for node in nodes for end in node.writes}
        consumed = dict.fromkeys(end.tensor for node in nodes for end in node.reads)
        nobody = [
            Node("nobody", name, "given by nobody", writes=(End(name, name),))
            for name in consumed
            if name not in produced
        ]
        models = {len(inputs) + place: others.get(step.model_name) for place, step in enumerate(steps)}
        return cls(model, (*nodes, *nobody), models)

    @property
    def name(self) -> str:
        return self.model.name

    def edges(self) -> Iterator[Edge]:
        """Yield an edge for each reader of each tensor, and for each of its writers if it wrongly has
        several.
        """
        for target, node in enumerate(self.nodes):
            for into, end in enumerate(node.reads):
                for source, out in self.writers(end.tensor):
                    yield Edge(end.tensor, source, out, target, into)

    def writers(self, tensor: str) -> list[tuple[int, int]]:
        """Return the nodes that write a tensor, with the index in their ``writes``."""
        return [
            (place, out)
            for place, node in enumerate(self.nodes)
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


def _step(step: Any, model: Model | None) -> Node:
    inputs, outputs = tensors(model) if model else ({}, {})
    return Node(
        "step",
        step.model_name,
        _detail(step, model),
        _connected_ends(step.input_map, inputs),
        _connected_ends(step.output_map, outputs),
    )


def _connected_ends(mapped: Mapping[str, str], tensors: Mapping[str, Tensor]) -> tuple[End, ...]:
    """Sort tensors by the model's configuration; those it does not have come last."""
    names = [*(name for name in tensors if name in mapped), *sorted(set(mapped) - set(tensors))]
    return tuple(
        End(mapped[name], name, tensors.get(name), bool(tensors) and name not in tensors) for name in names
    )


def _detail(step: Any, model: Model | None) -> str:
    if model is None:
        return "not there"
    version = step.model_version if step.model_version > 0 else max(model.served, default=None)
    number = f"version {version}" if version is not None else "no version"
    return f"{number} · {model.backend or '?'}"
