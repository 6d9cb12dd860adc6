"""``config.pbtxt``, through Triton's own protobuf: what git says of a model, and what a target adds.

Git's file names tensors, sizes and batching, the same for every target. How a model is run (its
backend, its instances) belongs to the target, so a line of that kind in git's file is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from sm.errors import StartError
from sm.repository.manifest import Target
from sm.tools.build.onnx_graph import Graph, Value

#: Fields of ModelConfig that a target sets.
TARGET_FIELDS = ("backend", "platform", "runtime", "default_model_filename", "optimization")

#: The length of a warm-up where nobody said another.
WARM = 16

#: Of a graph with convolutions, on processors.
INSTANCES = 2

Groups = model_config_pb2.ModelInstanceGroup

#: Name, Triton's datatype, and the dimensions with -1 for any size.
Tensor = tuple[str, str, tuple[int, ...]]


def read(path: Path) -> Any:
    """The ``ModelConfig`` of git's file; :class:`StartError` names the file and what is wrong in it."""
    config = parse(path)
    if config.name != path.parent.name:
        raise StartError(f"{path} names the model {config.name!r}; its folder is {path.parent.name!r}.")
    for field in TARGET_FIELDS:
        if field in {descriptor.name for descriptor, _ in config.ListFields()}:
            raise StartError(f"{path} sets {field!r}, which belongs to the target that runs the model.")
    return config


def parse(path: Path) -> Any:
    """The ``ModelConfig`` of any file; :class:`StartError` if it is none."""
    try:
        return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
    except FileNotFoundError:
        raise StartError(f"{path} is missing.") from None
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise StartError(f"{path} is no Triton configuration: {error}.") from None


def backend(target: Target) -> str:
    """Triton's backend that runs the target's models."""
    return "python" if target in ("cpu", "torch") else target


def for_target(config: Any, target: Target) -> Any:
    """The same model for one target; instances that git's file asks for stay."""
    made = model_config_pb2.ModelConfig()
    made.CopyFrom(config)
    made.backend = backend(target)
    for group in made.instance_group or [made.instance_group.add(count=1)]:
        if target == "cpu":
            group.kind = Groups.KIND_CPU
        elif target in ("tensorrt", "torch") and group.kind == Groups.KIND_AUTO:
            group.kind = Groups.KIND_GPU
    return made


def for_processors(config: Any, graph: Graph) -> Any:
    """The same model for the CPU target; instances and batching that somebody has described stay.

    Batches make a processor read weights once for many records. A convolution reads them once for a whole
    picture: a batch costs what its pictures cost one by one, takes more memory, and all wait for the last.
    Instead two instances part the cores (see sm/triton/onnx_cpu/model.py): threads that share one picture
    wait for each other.
    """
    made = for_target(config, "cpu")
    if not graph.convolves:
        return made
    if not made.dynamic_batching.ListFields():
        made.ClearField("dynamic_batching")
    if not config.instance_group:
        made.instance_group[0].count = INSTANCES
    return made


def of_graph(
    graph: Graph,
    name: str,
    largest: int,
    preferred: int = 0,
    ranges: Mapping[str, tuple[int, int, int]] = MappingProxyType({}),
) -> Any:
    """The configuration that the graph itself gives: tensors, dynamic batching up to ``largest``, a warm-up.

    A graph whose first sizes are fixed gets no batching. ``preferred``: a batch size worth waiting for.
    ``ranges``: of free sizes by name; the best one is the warm-up's, which makes Triton say that it is
    ready only after the first, slow call.
    """
    made = model_config_pb2.ModelConfig(name=name, max_batch_size=largest if graph.batched else 0)
    tell(made.input, graph.inputs, batched=graph.batched)
    tell(made.output, graph.outputs, batched=graph.batched)
    if graph.batched:
        made.dynamic_batching.SetInParent()
        if preferred > 1:
            made.dynamic_batching.preferred_batch_size.append(preferred)
    warmup = made.model_warmup.add(name="zeros", batch_size=1)
    for value, tensor in zip(graph.inputs, made.input, strict=True):
        sample = warmup.inputs[tensor.name]
        sample.data_type, sample.zero_data = tensor.data_type, True
        sizes = value.sizes[1:] if graph.batched else value.sizes
        sample.dims.extend(
            size if isinstance(size, int) else ranges.get(size, (1, WARM, 1))[1] for size in sizes
        )
    return made


def tell(tensors: Any, values: Sequence[Value], *, batched: bool) -> None:
    """Add a graph's inputs or outputs to a configuration's."""
    for value in values:
        dims = value.shape[1:] if batched else value.shape
        datatype = model_config_pb2.DataType.Value(value.datatype)
        tensors.add(name=value.name, data_type=datatype, dims=dims)


def warmed(graph: Graph, config: Any) -> Any:
    """The same model with the graph's warm-up, where it has none of its own."""
    made = model_config_pb2.ModelConfig()
    made.CopyFrom(config)
    if not made.model_warmup:
        made.model_warmup.extend(of_graph(graph, config.name, 1).model_warmup)
    return made


def merged(generated: Any, written: Any) -> Any:
    """``generated``, and each field that ``written`` has as it has it."""
    made = model_config_pb2.ModelConfig()
    made.CopyFrom(generated)
    _make_way(made, written)
    made.MergeFrom(written)
    return made


def _make_way(made: Any, written: Any) -> None:
    """Remove what is written anew; a part that is only opened, ``dynamic_batching { }``, says nothing."""
    for field, value in written.ListFields():
        if hasattr(value, "ListFields") and made.HasField(field.name):
            _make_way(getattr(made, field.name), value)
        else:
            made.ClearField(field.name)


def difference(generated: Any, final: Any, name: str) -> list[str]:
    """What ``name`` changed, as the lines of a diff; none where it changed nothing."""
    lines = (text(generated).splitlines(), text(final).splitlines())
    return list(difflib.unified_diff(*lines, "from the graph", f"with {name}", lineterm="", n=1))


def check(config: Any, graph: Path, path: Path) -> None:
    """:class:`StartError` unless the graph takes and gives exactly what the configuration says."""
    read = Graph.read(graph)
    batched = config.max_batch_size > 0
    for kind, configured, values in (
        ("inputs", config.input, read.inputs),
        ("outputs", config.output, read.outputs),
    ):
        said = sorted(_configured(tensor, batched) for tensor in configured)
        found = sorted((value.name, value.datatype, value.shape) for value in values)
        if said != found:
            raise StartError(f"{path} says {_shown(said)} of its {kind}; the model has {_shown(found)}.")


def text(config: Any) -> str:
    """As Triton reads it."""
    return str(text_format.MessageToString(config))


def _configured(tensor: Any, batched: bool) -> Tensor:
    datatype = model_config_pb2.DataType.Name(tensor.data_type)
    return tensor.name, datatype, (-1, *tensor.dims) if batched else tuple(tensor.dims)


def _shown(tensors: list[Tensor]) -> str:
    return ", ".join(f"{name} {datatype[5:]} {list(shape)}" for name, datatype, shape in tensors) or "nothing"
