"""The client classes: a payload becomes tensors, Triton runs the model, the outputs become an answer.

The smallest client has one method, :meth:`Client.inference`. The common case, one model behind one
payload, is a :class:`TensorClient`: ``preprocess`` and ``postprocess``. One instance serves many
threads, so nothing about a request may live on ``self``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from sm.client.payloads import ImagePayload, Parameters, Payload, TensorPayload, TextPayload
from sm.client.results import Picture
from sm.metrics import stage

__all__ = [
    "Array",
    "Client",
    "ImagePayload",
    "ModelMetadata",
    "Parameters",
    "Payload",
    "Picture",
    "StreamingClient",
    "TensorClient",
    "TensorMetadata",
    "TensorPayload",
    "TextPayload",
    "Triton",
]

Array = NDArray[Any]
Tensors = Mapping[str, Array]


@dataclass(frozen=True)
class TensorMetadata:
    """One input or output as Triton describes it, without the batch dimension; -1 is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelMetadata:
    """A served model: what it takes, gives and how many at once (0: no batch dimension)."""

    name: str
    versions: tuple[str, ...]
    max_batch_size: int
    inputs: Mapping[str, TensorMetadata] = field(default_factory=dict)
    outputs: Mapping[str, TensorMetadata] = field(default_factory=dict)
    #: Whether its answers say which request they are for.
    identifies_requests: bool = False


class Triton(Protocol):
    """What a client may ask of Triton. :class:`sm.triton.transport.Transport` is the real one."""

    def infer(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Run ``model``. Shapes are the model's own, batch dimension included where it has one.

        The arrays returned may be views of shared memory: they stay valid while they are referenced.
        """
        ...

    def stream(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> Generator[dict[str, Array], None, None]:
        """Run ``model`` and give each of its answers as it comes: a decoupled model has any number of them.

        The work in Triton is cancelled when the generator is closed or the caller leaves.
        """
        ...

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """What the model takes and gives; :class:`~sm.errors.UnknownModel` if it is not there."""
        ...


class Client(ABC):
    """A plugin that serves one ``modelname``: the name of its folder, or ``name``."""

    name: str = ""
    #: What the caller sends; gives the JSON schema and the 422 messages.
    payload: ClassVar[type[Payload]] = Payload
    #: The Triton models this client calls; checked to be served at start.
    models: ClassVar[tuple[str, ...]] = ()
    #: Its own name again, where the box has a client of that name: this one is served in its place.
    replaces: ClassVar[str] = ""

    def __init__(self, triton: Triton, folder: Path, repository: Path) -> None:
        self.triton = triton
        #: The client's own folder: labels, vocabulary, samples.
        self.folder = folder
        #: Triton's model repository: descriptions that travel beside a model's config.
        self.repository = repository

    def setup(self) -> None:  # noqa: B027  (most clients need none)
        """Load what is needed once per process (labels, a tokenizer). Runs before the first request."""

    @abstractmethod
    def inference(self, payload: Any) -> object:
        """Answer one payload: anything JSON can carry, NumPy included, or a :class:`Picture`."""

    def stream(self, payload: Any) -> Iterator[object]:
        """Answer one payload in parts, each sent when it is there: bytes, or what ``inference`` may return.

        Unless a client has its own, the one part is the result of ``inference``.
        """
        yield self.inference(payload)

    @classmethod
    def streams(cls) -> bool:
        """Whether the client has parts of its own to send."""
        return cls.stream is not Client.stream

    def required_models(self) -> tuple[str, ...]:
        """The Triton models that the client calls."""
        return self.models


class StreamingClient(Client):
    """A client that answers in parts: ``stream`` alone. Who wants no stream gets the list of them."""

    @abstractmethod
    def stream(self, payload: Any) -> Iterator[object]:
        """The parts of the answer, in their order."""

    def inference(self, payload: Any) -> object:
        return list(self.stream(payload))


class TensorClient(Client):
    """One model, three short verbs: ``preprocess``, (Triton), ``postprocess``."""

    #: The Triton model. A model may name the client in its configuration: :mod:`sm.plugins.model_choice`.
    model: str
    #: Other names under which the model may be served.
    aliases: ClassVar[tuple[str, ...]] = ()
    #: Names with dtype and shape (no batch dimension, -1 for any), as ``{"input": ("FP32", (3, 224, 224))}``;
    #: ``"FP32|UINT8"`` for a client that can give either.
    #: Optional; what is named here is compared with the served model at start.
    inputs: ClassVar[Mapping[str, tuple[str, tuple[int, ...]]]] = {}
    outputs: ClassVar[Mapping[str, tuple[str, tuple[int, ...]]]] = {}

    def required_models(self) -> tuple[str, ...]:
        return (self.model, *self.models)

    @abstractmethod
    def preprocess(self, payload: Any) -> Tensors:
        """Payload to input tensors, without the batch dimension."""

    @abstractmethod
    def postprocess(self, outputs: Tensors, payload: Any) -> object:
        """Output tensors, without the batch dimension, to the result."""

    def wanted(self, payload: Any) -> Sequence[str] | None:  # noqa: ARG002
        """The outputs to ask for: those named in ``outputs``, or all if none is."""
        return tuple(self.outputs) or None

    def inference(self, payload: Payload) -> object:
        with stage(self.name, "preprocess"):
            inputs = self.preprocess(payload)
        metadata = self.triton.metadata(self.model, payload.version)
        batch = batch_of(metadata, inputs)
        with stage(self.name, "infer"):
            outputs = self.triton.infer(
                self.model,
                {name: _in_batch(tensor, batch) for name, tensor in inputs.items()} if batch else inputs,
                version=payload.version,
                outputs=self.wanted(payload),
            )
        with stage(self.name, "postprocess"):
            return self.postprocess(
                {name: _first(tensor, name, metadata, batch) for name, tensor in outputs.items()}, payload
            )


def batch_of(metadata: ModelMetadata, inputs: Tensors) -> int:
    """How many records a call of the model has, given one record's tensors; 0: there is no batch dimension.

    Without ``max_batch_size`` the batch may be a dimension of the tensors themselves, free or of a fixed
    size: then the model's shapes have one dimension more than the record's.
    """
    if metadata.max_batch_size > 0:
        return 1
    sizes = set()
    for name, tensor in inputs.items():
        described = metadata.inputs.get(name)
        if described is None or len(described.shape) != np.ndim(tensor) + 1:
            return 0
        sizes.add(described.shape[0])
    fixed = sizes - {-1}
    return 0 if not sizes or len(fixed) > 1 else next(iter(fixed), 1)


def _in_batch(tensor: Array, batch: int) -> Array:
    """One record as a batch; where the model takes only larger ones, the record is repeated."""
    one = np.asarray(tensor)[None]
    return one if batch == 1 else np.repeat(one, batch, axis=0)


def _first(tensor: Array, name: str, metadata: ModelMetadata, batch: int) -> Array:
    """The first record's part of an output."""
    if metadata.max_batch_size > 0:
        return cast("Array", tensor[0])
    described = metadata.outputs.get(name)
    has_batch = batch and described and described.shape[:1] in ((-1,), (batch,))
    return cast("Array", tensor[0]) if has_batch and tensor.shape[:1] == (batch,) else tensor
