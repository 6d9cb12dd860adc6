"""Plan one inference: where each tensor travels, the request message, and how to read the answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb

from sm.client.base import Array, ModelMetadata
from sm.invocation import Invocation
from sm.triton.region_pool import Region
from sm.triton.tensors import DTYPES, byte_size, datatype, dtype, from_bytes, to_bytes

#: Kinds of requests that are remembered; the oldest is forgotten.
MAX_REQUEST_KINDS = 4096
#: After so many wrong predictions, a kind's outputs are sent as bytes: each one costs a second inference.
MAX_OVERFLOWS = 2
#: Room for an output that was larger than predicted before.
HEADROOM_FACTOR = 1.25


@dataclass(eq=False)
class OutputSizes:
    """Predict the sizes of outputs from those of earlier requests of the same kind.

    ``once``: they may not run twice. An output that outgrew its room would need that, so they have no room.
    """

    once: bool = False

    #: The largest bytes of each output so far, and how often one was larger than predicted.
    sizes: dict[str, int] = field(default_factory=dict)
    overflows: int = 0
    #: Made for these sizes.
    template: Template | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def predict(self, metadata: ModelMetadata, batch: int) -> dict[str, int]:
        """Return the bytes of each output: as in earlier requests of this kind, or by its fixed shape."""
        if self.once:
            return {}
        if self.sizes or self.overflows:
            return dict(self.sizes) if self.overflows < MAX_OVERFLOWS else {}
        rows = max(1, batch) if metadata.max_batch_size else 1
        fixed = {name: byte_size(output.datatype, output.shape) for name, output in metadata.outputs.items()}
        return {name: size * rows for name, size in fixed.items() if size}

    def learn(self, sizes: Mapping[str, int]) -> None:
        """Record the ``sizes`` of an answer."""
        with self.lock:
            factor = HEADROOM_FACTOR if self.overflows else 1
            for name, size in sizes.items():
                if int(size * factor) > self.sizes.get(name, 0):
                    self.sizes[name] = max(int(size * factor), 1)
                    self.template = None

    def record_overflow(self) -> None:
        """Record that an output was larger than predicted."""
        with self.lock:
            self.sizes.clear()
            self.overflows += 1
            self.template = None


#: The parameter that carries a request's token to a model, and the output that returns it. The same name
#: is in extensions/trireme_extensions/convert/onnx_cpu/request_token.py, which runs in the models' processes.
REQUEST_TOKEN = "trireme_request_token"  # noqa: S105  (not a secret)
#: The alignment of each tensor in a region, in bytes: the widest vector instructions need it.
ALIGNMENT_BYTES = 64

Memory = NDArray[np.uint8]


class Extent(NamedTuple):
    """A range of bytes in a region."""

    offset: int
    size: int


def _place(sizes: Mapping[str, int], start: int) -> tuple[dict[str, Extent], int]:
    """Place tensors one after the other; return where each lies, and where the next one would."""
    extents: dict[str, Extent] = {}
    for name, size in sizes.items():
        extents[name] = Extent(start, size)
        start -= -size // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    return extents, start


@dataclass(frozen=True, eq=False, slots=True)
class Template:
    """The plan that all requests of one kind share."""

    metadata: ModelMetadata
    version: str
    output_sizes: OutputSizes
    #: Where tensors lie in a region of ``size`` bytes. Those that are not in it are sent as bytes.
    inputs: Mapping[str, Extent]
    outputs: Mapping[str, Extent]
    size: int
    #: Name, offset and native dtype of each input in the region.
    writes: Sequence[tuple[str, int, np.dtype[Any]]]
    #: The message without a region, an id and tensors.
    message: Any


class Plans:
    """Makes the plans of a worker, with one template for each kind of request.

    ``has_state`` returns True if a model keeps state between calls, so that none may run twice.
    """

    def __init__(self, has_state: Callable[[str], bool] = lambda _: False) -> None:
        self._has_state = has_state
        self._kinds: dict[tuple[Hashable, ...], OutputSizes] = {}
        self._lock = threading.Lock()

    def make(
        self,
        metadata: ModelMetadata,
        version: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None,
        token: int = 0,
        invocation: Invocation | None = None,
    ) -> InferencePlan:
        """Create a plan.

        Args:
            metadata: The model's.
            version: The model version; empty for the server's choice.
            inputs: By name.
            outputs: The names of the outputs; None for all.
            token: A number that no other request has.
            invocation: The one that makes the call.
        """
        # The key of Triton's response cache does not say which outputs its answers have: they have all.
        requested = tuple(metadata.outputs if metadata.is_cached else outputs or metadata.outputs)
        arrays: dict[str, Array] = {}
        once = invocation is not None and not invocation.repeatable
        parts: list[Hashable] = [metadata.name, version, requested, once]
        for name, value in inputs.items():
            arrays[name] = array = np.asarray(value)
            parts += (name, array.dtype, array.shape)
        key = tuple(parts)
        sizes = self._kinds.get(key) or self._add(key, once or self._has_state(metadata.name))
        template = sizes.template
        if template is None or template.metadata is not metadata:
            with sizes.lock:
                template = sizes.template = _template(sizes, metadata, version, arrays, requested)
        return InferencePlan(template, arrays, token if metadata.identifies_requests else 0, invocation)

    def forget(self, models: Collection[str]) -> None:
        """Drop what was recorded for these models."""
        with self._lock:
            self._kinds = {key: sizes for key, sizes in self._kinds.items() if key[0] not in models}

    def _add(self, key: tuple[Hashable, ...], once: bool) -> OutputSizes:
        with self._lock:
            if len(self._kinds) >= MAX_REQUEST_KINDS:
                del self._kinds[next(iter(self._kinds))]
            return self._kinds.setdefault(key, OutputSizes(once))


def _template(
    output_sizes: OutputSizes,
    metadata: ModelMetadata,
    version: str,
    arrays: Mapping[str, Array],
    requested: tuple[str, ...],
) -> Template:
    inputs = tuple((name, datatype(array), array.shape) for name, array in arrays.items())
    batch = next((shape[0] for _, _, shape in sorted(inputs) if shape), 1)
    known = {name: size for name, type_, shape in inputs if (size := byte_size(type_, shape))}
    placed, end = _place(known, 0)
    expected = output_sizes.predict(metadata, batch)
    room, end = _place({name: size for name, size in expected.items() if name in requested}, end)
    message = pb.ModelInferRequest(model_name=metadata.name, model_version=version)
    for name, tensor_type, shape in inputs:
        message.inputs.add(name=name, datatype=tensor_type, shape=shape)
    for name in requested:
        message.outputs.add(name=name)
    if metadata.identifies_requests:
        message.outputs.add(name=REQUEST_TOKEN)
    types = {name: dtype(type_) for name, type_, _ in inputs if name in placed}
    writes = tuple((name, extent.offset, types[name]) for name, extent in placed.items())
    return Template(metadata, version, output_sizes, placed, room, end, writes, message)


class InferencePlan:
    """One inference: its inputs and outputs, and their layout in a region.

    Args:
        template: What it shares with others.
        arrays: The inputs by name.
        token: The number that the model must return, so that its answer is recognised; 0 if it cannot.
        invocation: The one that makes the call; None if there is none.
    """

    __slots__ = ("_template", "arrays", "invocation", "outputs", "size", "token")

    def __init__(
        self,
        template: Template,
        arrays: Mapping[str, Array],
        token: int = 0,
        invocation: Invocation | None = None,
    ) -> None:
        self._template, self.arrays, self.token, self.invocation = template, arrays, token, invocation
        #: Bytes of the region that the request needs, and the outputs that have room in it.
        self.size, self.outputs = template.size, template.outputs

    @property
    def model(self) -> str:
        return self._template.metadata.name

    @property
    def version(self) -> str:
        return self._template.version

    @property
    def requested(self) -> list[str]:
        """The names of the outputs."""
        return [output.name for output in self._template.message.outputs if output.name != REQUEST_TOKEN]

    @property
    def output_sizes(self) -> OutputSizes:
        return self._template.output_sizes

    def write(self, memory: Memory) -> None:
        """Copy the inputs into the region."""
        for name, offset, native in self._template.writes:
            array = self.arrays[name]
            np.copyto(np.ndarray(array.shape, native, memory, offset), array)

    def request(self, region: Region | None = None) -> Any:
        """Build the message to Triton; without a region it carries all tensors.

        A region keeps the last message that was built for it, because the next request of the same kind
        differs only in its id and token.
        """
        if region is not None and region.message[0] is self._template:
            message = region.message[1]
        else:
            message = self._message(region)
        message.id = self.invocation.request_id if self.invocation else ""
        if self.token:
            message.parameters[REQUEST_TOKEN].int64_param = self.token
        return message

    def _message(self, region: Region | None) -> Any:
        template = self._template
        message = pb.ModelInferRequest()
        message.CopyFrom(template.message)
        if region is None:
            message.raw_input_contents.extend(map(to_bytes, self.arrays.values()))
            return message
        for tensors, extents in ((message.inputs, template.inputs), (message.outputs, self.outputs)):
            for tensor in tensors:
                if extent := extents.get(tensor.name):
                    tensor.parameters["shared_memory_region"].string_param = region.name
                    tensor.parameters["shared_memory_byte_size"].int64_param = extent.size
                    tensor.parameters["shared_memory_offset"].int64_param = extent.offset
                elif tensors is message.inputs:
                    message.raw_input_contents.append(to_bytes(self.arrays[tensor.name]))
        if not message.raw_input_contents:
            region.message = template, message
        return message

    def is_answered_by(self, response: Any) -> bool:
        """True if ``response`` returns this request's token, or if the model returns none."""
        if not self.token:
            return True
        for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
            if tensor.name == REQUEST_TOKEN:
                return bool(raw == self.token.to_bytes(8, "little"))
        return False

    def read(self, response: Any, memory: Memory | None = None) -> dict[str, Array]:
        """Return the outputs by name; those with room in the region are views of its ``memory``."""
        arrays: dict[str, Array] = {}
        for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
            name = tensor.name
            if name == REQUEST_TOKEN:
                continue
            extent = self.outputs.get(name) if memory is not None else None
            if extent is not None:
                native = DTYPES[tensor.datatype]
                arrays[name] = np.ndarray(tuple(tensor.shape), native, memory, extent.offset)
            else:
                arrays[name] = from_bytes(raw, tensor.datatype, tensor.shape)
        return arrays


def sizes_of(response: Any) -> dict[str, int]:
    """Return the bytes of each output of a response, without strings."""
    sizes = {
        tensor.name: byte_size(tensor.datatype, tensor.shape)
        for tensor in response.outputs
        if tensor.name != REQUEST_TOKEN
    }
    return {name: size for name, size in sizes.items() if size is not None}
