"""The client classes: a payload becomes tensors, Triton runs the model, the outputs become an answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from sm.client.marks import Marks
from sm.client.own_metrics import Metrics
from sm.client.payloads import Payload
from sm.client.results import ResultKind
from sm.errors import ClientFailed
from sm.metrics import stage

Array = NDArray[Any]
Tensors = Mapping[str, Array]


@dataclass(frozen=True)
class TensorMetadata:
    """One input or output of a model, as Triton describes it."""

    name: str
    #: Triton's name of the type: ``FP32``, ``UINT8``, ``BYTES``.
    datatype: str
    #: Without the batch dimension of ``max_batch_size``; -1 stands for any size.
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelMetadata:
    """A served model: its versions, inputs and outputs."""

    name: str
    #: The versions that are loaded.
    versions: tuple[str, ...]
    #: Records in one call; 0 if the model's tensors have no batch dimension of Triton's.
    max_batch_size: int
    #: The inputs by name.
    inputs: Mapping[str, TensorMetadata] = field(default_factory=dict)
    #: The outputs by name.
    outputs: Mapping[str, TensorMetadata] = field(default_factory=dict)
    #: True if each answer of the model names its request, so that a wrong one is recognised.
    identifies_requests: bool = False
    #: True if an answer may be from Triton's response cache.
    is_cached: bool = False


class Triton(Protocol):
    """Calls of Triton.

    Every call ends at the invocation's deadline, and when the caller disconnects. All errors are of
    :mod:`sm.errors`; a client may let them through.
    """

    def infer(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Run a model once.

        Args:
            model: The model's name in Triton.
            inputs: Arrays by input name, in the model's dtypes and shapes, with the batch dimension if it has
                one.
            version: The model version; empty for the server's choice.
            outputs: Names of the outputs to fetch; None for all.

        Returns:
            Arrays by output name, with the batch dimension if the model has one. They may be views of shared
            memory, and are valid while they are referenced.

        Raises:
            sm.errors.UnknownModel: Triton has no such model or version.
            sm.errors.WrongTensor: An input's name, dtype or shape is not the model's.
            sm.errors.DeadlinePassed: The invocation's time is over.
            sm.errors.NotReady: Triton is starting again.
        """
        ...

    def stream(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> Generator[dict[str, Array], None, None]:
        """Run a model and yield each of its answers when it arrives; a decoupled model sends any number.

        Closing the generator cancels the work in Triton. Arguments and errors are those of :meth:`infer`.

        Yields:
            The arrays of one answer, by output name.
        """
        ...

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """Describe a model.

        Args:
            model: The model's name in Triton.
            version: The model version; empty for the server's choice.

        Returns:
            Its versions, inputs and outputs. The description is cached for as long as Triton runs.

        Raises:
            sm.errors.UnknownModel: Triton has no such model or version.
        """
        ...


class ClientTriton(Triton):
    """Calls of Triton that a client makes, as ``self.triton``. Each inference counts as a stage.

    The stage is ``infer`` for the model of a :class:`TensorClient`, and ``infer NAME`` for any other.
    """

    def __init__(self, triton: Triton, client: Client) -> None:
        self._triton, self._client = triton, client

    def infer(
        self,
        model: str,
        inputs: Tensors,
        *,
        version: str = "",
        outputs: Sequence[str] | None = None,
        split: bool = False,
    ) -> dict[str, Array]:
        """Run a model once, or with ``split`` as often as the rows need.

        Args:
            model: The model's name in Triton.
            inputs: Arrays by input name, in the model's dtypes and shapes, with the batch dimension if it has
                one.
            version: The model version; empty for the server's choice.
            outputs: Names of the outputs to fetch; None for all.
            split: True to send more rows than the model's ``max_batch_size`` in several calls, one after the
                other, and to join the outputs along the batch dimension.

        Returns:
            Arrays by output name, with the batch dimension if the model has one. They may be views of shared
            memory, and are valid while they are referenced.

        Raises:
            sm.errors.UnknownModel: Triton has no such model or version.
            sm.errors.WrongTensor: An input's name, dtype or shape is not the model's, or there are more rows
                than it takes.
            sm.errors.DeadlinePassed: The invocation's time is over.
            sm.errors.NotReady: Triton is starting again.
        """
        client = self._client
        own = model == getattr(client, "model", None)
        with stage(client.name, "infer" if own else f"infer {model}"):
            rows = self._max_rows(model, version, inputs) if split else 0
            if not rows:
                return self._triton.infer(model, inputs, version=version, outputs=outputs)
            total = len(next(iter(inputs.values())))
            answers = [
                self._triton.infer(
                    model,
                    {name: array[start : start + rows] for name, array in inputs.items()},
                    version=version,
                    outputs=outputs,
                )
                for start in range(0, total, rows)
            ]
            return {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}

    def stream(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> Generator[dict[str, Array], None, None]:
        return self._triton.stream(model, inputs, version=version, outputs=outputs)

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        return self._triton.metadata(model, version)

    def _max_rows(self, model: str, version: str, inputs: Tensors) -> int:
        """Return the rows of one call if all inputs have the same number of rows, and more; else 0."""
        limit = self._triton.metadata(model, version).max_batch_size
        sizes = {np.shape(array)[0] if np.ndim(array) else 0 for array in inputs.values()}
        return limit if len(sizes) == 1 and sizes.pop() > limit else 0


class Client(ABC):
    """A client with one method to write, :meth:`inference`, which may call several models, or none.

    One instance serves many threads at once, so nothing about a request may be stored on ``self``. For a
    client of one model, :class:`TensorClient` is shorter.

    Example::

        class FindThenName(Client):
            \"\"\"Find the objects in a picture, then name each with a second model.\"\"\"

            payload = ImagePayload
            models = ("detector", "classifier")

            def inference(self, payload: ImagePayload) -> list[str]:
                boxes = self.triton.infer("detector", {"image": payload.pixels[None]})["boxes"][0]
                crops = np.stack([crop(payload.pixels, box) for box in boxes])
                scores = self.triton.infer("classifier", {"image": crops}, split=True)["scores"]
                return self.names(scores)
    """

    #: The ``modelname`` that callers send; by default the name of the client's folder.
    name: str = ""
    #: The payload's type. It decides the JSON schema, the OpenAPI entry and the 422 messages.
    payload: ClassVar[type[Payload]] = Payload
    #: The Triton models that this client calls. The start fails if one is not served.
    models: ClassVar[tuple[str, ...]] = ()
    #: The kind of the result, so that a page can show it. ``None``: any JSON.
    result: ClassVar[ResultKind | None] = None
    #: Files of the folder ``sample``, beside ``payload.json``, that callers may read to try the client.
    samples: ClassVar[tuple[str, ...]] = ()
    #: False if a call of its models changes what later calls answer: then none is sent twice.
    repeatable: ClassVar[bool] = True
    #: The client's own name, to serve it instead of the box's client of the same name.
    replaces: ClassVar[str] = ""
    #: True if requests that name no model are for this client, unless a setting names another.
    answers_unnamed: ClassVar[bool] = False
    #: Records that :meth:`inference_batch` gets at most, if the client implements it.
    max_batch: ClassVar[int] = 32
    #: Milliseconds that a record waits for others although nothing is under way.
    max_wait_ms: ClassVar[float] = 0.0

    #: The box's own notes on this client.
    _marks: Marks = Marks()

    def __init__(self, triton: Triton, folder: Path, repository: Path) -> None:
        self._marks = Marks()
        #: Calls models.
        self.triton = ClientTriton(triton, self)
        #: Makes the client's own metrics, in :meth:`setup`.
        self.metrics = Metrics(self)
        #: The client's own folder, with its labels, vocabulary and samples.
        self.folder = folder
        #: Triton's model repository, for descriptions that lie beside a model's configuration.
        self.repository = repository

    def setup(self) -> None:  # noqa: B027  (most clients need none)
        """Load what is needed once per process, such as labels or a tokenizer; runs before the first request.

        Raises:
            sm.errors.StartError: The box does not start, and says this sentence.
        """

    def ready(self) -> bool | str:
        """Return whether the client can serve now; optional.

        Every worker asks after ``setup`` and every three seconds, in a thread of its own, and waits two
        seconds for the answer. While a client is not ready, its callers get a 503 with its name and the
        sentence.

        Returns:
            True, or a sentence that says why not. False says no more than that.
        """
        return True

    @abstractmethod
    def inference(self, payload: Any) -> object:
        """Answer one record.

        Args:
            payload: The record, of the type in ``payload``.

        Returns:
            Anything JSON can carry, with NumPy arrays and scalars anywhere in it, or a :class:`Picture`.
        """

    def inference_batch(self, payloads: Sequence[Any]) -> Sequence[object]:
        """Answer several records that waited at the same time; optional.

        They may be of different callers. If this raises, the halves are tried, and a record that is left
        alone goes to :meth:`inference`: so a bad record fails alone.

        Args:
            payloads: At least two records, and at most ``max_batch``.

        Returns:
            For each record what :meth:`inference` returns, in the same order.
        """
        return [self.inference(payload) for payload in payloads]

    def stream(self, payload: Any) -> Iterator[object]:
        """Answer one record in parts, each sent as soon as it is yielded.

        The default yields one part: the result of :meth:`inference`.

        Args:
            payload: The record, of the type in ``payload``.

        Yields:
            Bytes, or anything that :meth:`inference` may return.
        """
        yield self.inference(payload)

    def redact(self, payload: Any, result: Any) -> tuple[Any, Any] | None:
        """Return what the payload capture may keep of an invocation; None for nothing; optional.

        It runs after the answer, outside the request. If it raises, nothing is kept. While a client has it,
        requests that are for no single client (JSON lines, Triton's own protocol) are not kept.

        Args:
            payload: The request's body: parsed if it is JSON, else bytes.
            result: The answer's body likewise; None for a stream.
        """
        return payload, result

    @classmethod
    def streams(cls) -> bool:
        """True if the client implements :meth:`stream` itself."""
        return cls.stream is not Client.stream

    def watches_readiness(self) -> bool:
        """True if the client implements :meth:`ready`."""
        return type(self).ready is not Client.ready

    def prepare(self, payload: Any) -> int:  # noqa: ARG002
        """Do what a record needs before it meets those of other callers in a batch; optional.

        It runs in the record's own thread, and only if the client takes batches.

        Args:
            payload: The record.

        Returns:
            The record's length, such as its tokens. Records of similar lengths share a batch, and long ones
            make a small one. 0: any may share one.
        """
        return 0

    def takes_batches(self) -> bool:
        """True if the client implements :meth:`inference_batch`."""
        return type(self).inference_batch is not Client.inference_batch

    def required_models(self) -> tuple[str, ...]:
        """Return the names of the Triton models that the client calls."""
        return self.models


class StreamingClient(Client):
    """A client that answers in parts. A caller that does not stream gets the list of the parts.

    Example::

        class Generator(StreamingClient):
            \"\"\"Send each token when the model yields it.\"\"\"

            payload = TextPayload
            models = ("generator",)

            def stream(self, payload: TextPayload) -> Iterator[str]:
                prompt = np.array([[payload.text.encode()]], np.object_)
                for outputs in self.triton.stream("generator", {"prompt": prompt}):
                    yield outputs["token"][0, 0].decode()
    """

    @abstractmethod
    def stream(self, payload: Any) -> Iterator[object]:
        """Yield the parts of one record's answer; see :meth:`Client.stream`."""

    def inference(self, payload: Any) -> object:
        """Return the list of all parts."""
        return list(self.stream(payload))


class TensorClient(Client):
    """A client of one model: :meth:`preprocess` makes its inputs, :meth:`postprocess` reads its outputs.

    Both see tensors of one record, without a batch dimension. Triton batches records of several requests.

    Example::

        class Resnet(TensorClient):
            \"\"\"Name what a picture shows.\"\"\"

            model = "resnet"
            payload = ImagePayload

            def setup(self) -> None:
                self.preprocessing = Preprocessing.read(self.repository / self.model / "preprocess.json")
                self.labels = (self.folder / "labels.txt").read_text("utf-8-sig").splitlines()

            def preprocess(self, payload: ImagePayload) -> Tensors:
                return {"input": self.preprocessing(payload.pixels)}

            def postprocess(self, outputs: Tensors, payload: ImagePayload) -> str:
                return self.labels[outputs["scores"].argmax()]
    """

    #: The Triton model, unless a model's configuration names this client.
    model: str
    #: Other names under which the model may be served.
    aliases: ClassVar[tuple[str, ...]] = ()
    #: Input names with dtype and shape, as ``{"input": ("FP32", (3, 224, 224))}``: no batch dimension, -1 for
    #: any size, ``"FP32|UINT8"`` if the client can make either. Optional; compared with the served model at
    #: start.
    inputs: ClassVar[Mapping[str, tuple[str, tuple[int, ...]]]] = {}
    #: Output names with dtype and shape, as in ``inputs``. Only the outputs named here are fetched, or all if
    #: none is.
    outputs: ClassVar[Mapping[str, tuple[str, tuple[int, ...]]]] = {}

    def required_models(self) -> tuple[str, ...]:
        """Return ``model`` and ``models``."""
        return (self.model, *self.models)

    @abstractmethod
    def preprocess(self, payload: Any) -> Tensors:
        """Turn one record into the model's inputs.

        Args:
            payload: The record, of the type in ``payload``.

        Returns:
            Arrays by input name, in the model's dtypes, without the batch dimension.
        """

    @abstractmethod
    def postprocess(self, outputs: Tensors, payload: Any) -> object:
        """Turn the model's outputs into the result.

        Args:
            outputs: Arrays by output name, in the model's dtypes, without the batch dimension. They may be
                views of shared memory: copy what outlives the call.
            payload: The record that :meth:`preprocess` got.

        Returns:
            Anything that :meth:`Client.inference` may return.
        """

    def preprocess_batch(self, payloads: Sequence[Any]) -> Tensors:
        """Turn several records into the model's inputs; optional.

        Args:
            payloads: The records; see :meth:`inference_batch`.

        Returns:
            Arrays by input name with a row for each record. The default stacks those of :meth:`preprocess`,
            which must have equal shapes.
        """
        records = [self.preprocess(payload) for payload in payloads]
        return {name: np.stack([record[name] for record in records]) for name in records[0]}

    def postprocess_batch(self, outputs: Tensors, payloads: Sequence[Any]) -> Sequence[object]:
        """Turn the model's outputs for several records into their results; optional.

        Args:
            outputs: Arrays by output name, with a row for each record.
            payloads: The records that :meth:`preprocess_batch` got.

        Returns:
            The result of each record. The default calls :meth:`postprocess` for each.
        """
        return [
            self.postprocess({name: rows[number] for name, rows in outputs.items()}, payload)
            for number, payload in enumerate(payloads)
        ]

    def takes_batches(self) -> bool:
        """True if the client implements a method for batches, and its model takes several records."""
        cls = type(self)
        if cls.inference_batch is not TensorClient.inference_batch:
            return True
        own = (cls.preprocess_batch, cls.postprocess_batch)
        if own == (TensorClient.preprocess_batch, TensorClient.postprocess_batch):
            return False
        metadata = self.triton.metadata(self.model)
        return metadata.max_batch_size > 0 or all(
            tensor.shape[:1] == (-1,) for tensor in metadata.inputs.values()
        )

    def wanted(self, payload: Any) -> Sequence[str] | None:  # noqa: ARG002
        """Choose the outputs to fetch for a record.

        Args:
            payload: The record, of the type in ``payload``.

        Returns:
            Names of outputs; None for all. The default is the names in ``outputs``.
        """
        return tuple(self.outputs) or None

    def inference(self, payload: Payload) -> object:
        """Run :meth:`preprocess`, the model and :meth:`postprocess`, and time each for ``/metrics``."""
        with stage(self.name, "preprocess"):
            inputs = self.preprocess(payload)
            if type(inputs) is not dict and not isinstance(inputs, Mapping):
                returned = "nothing" if inputs is None else f"a {type(inputs).__name__}"
                raise ClientFailed(
                    f"the client of {self.name!r} failed: preprocess returned {returned}, not arrays by name"
                )
        version = payload.version
        metadata = self.triton.metadata(self.model, version)
        has_batches = metadata.max_batch_size > 0
        batch = 1 if has_batches else batch_of(metadata, inputs)
        if batch:
            batched = {}
            for name, tensor in inputs.items():
                # If the model's batch size is fixed, the record is repeated to fill it.
                record = np.asarray(tensor)[None]
                batched[name] = record if batch == 1 else np.repeat(record, batch, axis=0)
            inputs = batched
        outputs = self.triton.infer(self.model, inputs, version=version, outputs=self.wanted(payload))
        with stage(self.name, "postprocess"):
            results = {}
            for name, tensor in outputs.items():
                is_batch = has_batches or _has_batch(tensor, name, metadata, batch)
                results[name] = tensor[0] if is_batch else tensor
            return self.postprocess(results, payload)

    def inference_batch(self, payloads: Sequence[Any]) -> Sequence[object]:
        """Run :meth:`preprocess_batch`, the model and :meth:`postprocess_batch`, and time each."""
        with stage(self.name, "preprocess"):
            inputs = self.preprocess_batch(payloads)
        wanted = [self.wanted(payload) for payload in payloads]
        names = None if None in wanted else tuple({name for each in wanted for name in each or ()})
        outputs = self.triton.infer(self.model, inputs, outputs=names, split=True)
        with stage(self.name, "postprocess"):
            return self.postprocess_batch(outputs, payloads)


def batch_of(metadata: ModelMetadata, inputs: Tensors) -> int:
    """Return how many records one call of the model takes; 0 if there is no batch dimension.

    Without ``max_batch_size`` the tensors themselves may have a batch dimension, free or of a fixed size. The
    model's shapes then have one dimension more than those of the record's ``inputs``.
    """
    if metadata.max_batch_size > 0:
        return 1
    sizes = set()
    for name, tensor in inputs.items():
        model_input = metadata.inputs.get(name)
        if model_input is None or len(model_input.shape) != np.ndim(tensor) + 1:
            return 0
        sizes.add(model_input.shape[0])
    fixed_sizes = sizes - {-1}
    return 0 if not sizes or len(fixed_sizes) > 1 else next(iter(fixed_sizes), 1)


def _has_batch(tensor: Array, name: str, metadata: ModelMetadata, batch: int) -> bool:
    """True if an output of a model without ``max_batch_size`` has a batch dimension."""
    model_output = metadata.outputs.get(name)
    has_batch = batch and model_output and model_output.shape[:1] in ((-1,), (batch,))
    return bool(has_batch) and tensor.shape[:1] == (batch,)
