"""Describe a model that exists, so that a client is written from its tensors, and let the client answer."""

from __future__ import annotations

import json
import keyword
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sm.client.base import ModelMetadata, TensorMetadata
from sm.client.payloads import Payload
from sm.client.tensor_roles import ImageInput, UnsuitableModel, find_image, format_tensors
from sm.errors import CommandError
from sm.plugins.sources import ClientSource
from sm.repository.models import Model, protobuf
from sm.server.startup import choose_repository
from sm.settings import Settings
from sm.triton.tensors import DTYPES, STRINGS, configured
from sm.triton.transport import Transport
from trireme_tools.check.calls import CheckRequest, InProcessCaller
from trireme_tools.check.discovery import is_servable
from trireme_tools.check.triton_server import ready, triton

#: The types of pictures, with the line that makes one of a resized uint8 picture.
PICTURES = {
    "FP32": "np.divide({}, 255, dtype=np.float32)",
    "FP16": "np.divide({}, 255, dtype=np.float16)",
    "UINT8": "{}",
}
#: Pixels of a picture's side, if the model takes any.
SIDE = 224
#: Sizes that are tried for a free one, such as a length, until the model answers.
FREE_SIZES = (1, 8, 64)
#: The answer has the first ten numbers of an output with more than this.
MAX_ANSWER_NUMBERS = 10_000


#: Names, types and shapes.
Tensors = list[tuple[str, str, tuple[int, ...]]]


@dataclass(frozen=True)
class RealModel:
    """A model and, if it runs on this machine, the Triton that serves it."""

    repository: Path
    metadata: ModelMetadata
    triton: Transport | None
    #: Why Triton does not serve it.
    reason: str = ""

    def choose_kind(self, wanted: str | None) -> str:
        """Return the kind of client: ``wanted``, or what the inputs look like.

        Raises:
            CommandError: The model does not take that kind.
        """
        inputs = tuple(self.metadata.inputs.values())
        fitting = ["tensor"]
        if len(inputs) == 1 and inputs[0].datatype == STRINGS and math.prod(inputs[0].shape) in (1, -1):
            fitting.insert(0, "text")
        if self._image:
            fitting.insert(0, "image")
        if wanted and wanted not in fitting:
            raise CommandError(
                f"the model {self.metadata.name!r} takes {format_tensors(inputs)}: --kind is one of "
                f"{', '.join(fitting)} for it."
            )
        return wanted or fitting[0]

    @property
    def _image(self) -> ImageInput | None:
        try:
            return find_image(self.metadata, PICTURES) if len(self.metadata.inputs) == 1 else None
        except UnsuitableModel:
            return None

    def words(self) -> dict[str, str]:
        """Return what the templates of ``of_model`` leave open."""
        inputs, outputs = self.metadata.inputs.values(), self.metadata.outputs.values()
        image = self._image
        resized = "resized.transpose(2, 0, 1)" if image and image.layout == "CHW" else "resized"
        return {
            "inputs": _lines(8, (_declared(tensor) for tensor in inputs)),
            "outputs": _lines(8, (_declared(tensor) for tensor in outputs)),
            "answer": _lines(12, map(_answered, outputs)),
            "input": _quoted(next(iter(inputs)).name),
            "size": repr(image.size(SIDE)) if image else "",
            "tensor": PICTURES[image.datatype].format(resized) if image else "",
            "fields": "\n".join(
                f'    {_field(tensor)}: Any = Field(description="{tensor.datatype} {list(tensor.shape)}")'
                for tensor in inputs
            ),
            "arrays": _lines(
                12,
                (
                    f"{_quoted(tensor.name)}: read("
                    f'payload.{_field(tensor)}, "{_field(tensor)}", "{_dtype(tensor)}"),'
                    for tensor in inputs
                ),
            ),
            "golden_source": f"the answer is what `{self.metadata.name}` itself gave",
        }

    def write_sample(self, client: Path) -> list[str]:
        """Write the sample of the client in the folder ``client``, with the answer that the model gives.

        Returns:
            What the author has to fill in, in a sentence; nothing if the client may pass its checks.
        """
        file = client / "sample" / "payload.json"
        payloads = [json.loads(file.read_bytes())] if file.exists() else list(map(self._payload, FREE_SIZES))
        file.write_text(f"{json.dumps(payloads[0])}\n")
        golden = file.with_name("golden.json")
        golden.write_text("null\n")
        reason = self.reason
        if self.triton:
            source = ClientSource(self.metadata.name, client / "client.py")
            caller = InProcessCaller(ready(source, self.triton, self.repository))
            for payload in payloads:
                reply = caller.ask(CheckRequest(payload))
                if reply.status == 200:
                    file.write_text(f"{json.dumps(payload)}\n")
                    golden.write_text(f"{json.dumps(reply.result)}\n")
                    return self._doubts
                reason = f"the sample gives {reply.sentence}"
        return [f"fill in sample/payload.json and sample/golden.json: {reason}"]

    @property
    def _doubts(self) -> list[str]:
        """Return a sentence if only the author knows which numbers or lengths the model fails on."""
        tensors = tuple(self.metadata.inputs.values())
        has_indexes = any("INT" in tensor.datatype for tensor in tensors)
        has_lengths = len(tensors) > 1 and any(-1 in tensor.shape for tensor in tensors)
        if self._image or not (has_indexes or has_lengths):
            return []
        return [
            "fill in preprocess in client.py: refuse what the model fails on, such as an index beyond its "
            "table or lists of different lengths"
        ]

    def _payload(self, size: int) -> dict[str, Any]:
        """Return a payload of ones, which are also good masks and indexes, with ``size`` for free sizes."""
        return {
            _field(tensor): np.full(
                [free if free >= 0 else size for free in tensor.shape],
                "text" if tensor.datatype == STRINGS else 1,
                _dtype(tensor),
            ).tolist()
            for tensor in self.metadata.inputs.values()
        }


def find_repository(name: str, folder: Path, settings: Settings) -> Path | None:
    """Return ``folder``/model or the repository that is set, if it has the model."""
    places = ((folder / "model").absolute(), choose_repository(settings))
    return next((place for place in places if is_servable(place, name)), None)


@contextmanager
def opened(repository: Path, name: str) -> Iterator[RealModel]:
    """Yield the model as Triton describes it, or, if it does not run here, as its files do.

    Raises:
        CommandError: Neither Triton nor the files say what tensors it has.
    """
    with ExitStack() as stack:
        try:
            transport = stack.enter_context(triton((name,), repository, Settings.read(os.environ)))
        except CommandError as error:
            metadata = _read_metadata(repository / name)
            if metadata is None:
                raise
            yield RealModel(repository, metadata, None, str(error))
        else:
            yield RealModel(repository, transport.metadata(name), transport)


def _read_metadata(folder: Path) -> ModelMetadata | None:
    """Read a model's tensors from its ``config.pbtxt``, or from its ONNX file; None if neither has them."""
    model = Model.read(folder)
    if model.config and model.config.input and model.config.output:
        inputs, outputs = (
            [(one.name, protobuf().DataType.Name(one.data_type), tuple(one.dims)) for one in tensors]
            for tensors in (model.config.input, model.config.output)
        )
        return _metadata(model.name, model.config.max_batch_size, inputs, outputs)
    file = model.version(model.versions[-1]) / (model.file or "")
    if file.suffix != ".onnx":
        return None
    try:
        from trireme_extensions.convert.onnx_graph import Graph  # needs onnx, which comes with an extra
    except ImportError:
        return None
    graph = Graph.read(file)
    first = int(graph.batched)
    inputs, outputs = (
        [(one.name, one.datatype, one.shape[first:]) for one in values]
        for values in (graph.inputs, graph.outputs)
    )
    return _metadata(model.name, first, inputs, outputs)


def _metadata(name: str, batch: int, inputs: Tensors, outputs: Tensors) -> ModelMetadata:
    return ModelMetadata(name, (), batch, _described(inputs), _described(outputs))


def _described(tensors: Tensors) -> dict[str, TensorMetadata]:
    return {name: TensorMetadata(name, configured(kind), shape) for name, kind, shape in tensors}


def _lines(indent: int, lines: Iterable[str]) -> str:
    return "\n".join(" " * indent + line for line in lines)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _dtype(tensor: TensorMetadata) -> str:
    if tensor.datatype == STRINGS:
        return "object"
    if tensor.datatype not in DTYPES:
        raise CommandError(f"its input {tensor.name!r} is {tensor.datatype}, which no client can make.")
    return DTYPES[tensor.datatype].name


def _field(tensor: TensorMetadata) -> str:
    """Return a name for the payload's field: the tensor's, unless Python or a payload uses it."""
    name = re.sub(r"\W", "_", tensor.name, flags=re.ASCII)
    is_free = name.isidentifier() and not keyword.iskeyword(name) and not name.startswith(("_", "model_"))
    return name if is_free and name != "parameters" and not hasattr(Payload, name) else f"tensor_{name}"


def _declared(tensor: TensorMetadata) -> str:
    return f'{_quoted(tensor.name)}: ("{tensor.datatype}", {tensor.shape}),'


def _answered(tensor: TensorMetadata) -> str:
    name = _quoted(tensor.name)
    if tensor.datatype == STRINGS:
        return f'{name}: [text.decode(errors="replace") for text in outputs[{name}].ravel()],'
    if math.prod(map(abs, tensor.shape)) > MAX_ANSWER_NUMBERS:
        return f"{name}: outputs[{name}].ravel()[:10],  # of {list(tensor.shape)}"
    return f"{name}: outputs[{name}],"
