"""An ensemble as a graph: the nodes are its inputs, steps and outputs, and the edges are tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sm.repository import config_files
from sm.repository.models import Model


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
        datatype = config_files.protobuf().DataType.Name(config.data_type).removeprefix("TYPE_")
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
