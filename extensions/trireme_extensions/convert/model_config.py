"""A model's ``config.pbtxt``: made from the graph, merged with a hand-written file, and compared with it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tritonclient.grpc import model_config_pb2

from sm.errors import CommandError
from sm.repository.manifest import Change, Target
from sm.repository.models import read_config, write_config
from trireme_extensions.convert import build_request
from trireme_extensions.convert.build_arguments import Range
from trireme_extensions.convert.build_request import BuildRequest
from trireme_extensions.convert.graph_runner import Sizes
from trireme_extensions.convert.onnx_graph import Graph, Value

#: Fields of ModelConfig that a target sets.
TARGET_FIELDS = ("backend", "platform", "runtime", "default_model_filename", "optimization")

#: A free size of the warm-up's input if the request does not set it, such as a text's length.
WARM_UP_SIZE = 16

#: Instances of a graph with convolutions on the CPU target.
CONVOLUTION_INSTANCES = 2

Groups = model_config_pb2.ModelInstanceGroup

#: Name, Triton's datatype, and the dimensions with -1 for any size.
Tensor = tuple[str, str, tuple[int, ...]]


def read(path: Path) -> Any:
    """Read a ``ModelConfig`` from git. Raises :class:`CommandError` with the file and what is wrong in it."""
    config = parse(path)
    if config.name != path.parent.name:
        raise CommandError(f"{path} names the model {config.name!r}; its folder is {path.parent.name!r}.")
    for name in TARGET_FIELDS:
        if name in {descriptor.name for descriptor, _ in config.ListFields()}:
            raise CommandError(f"{path} sets {name!r}, which belongs to the target that runs the model.")
    return config


def parse(path: Path) -> Any:
    """Read a ``ModelConfig`` from any file. Raises :class:`CommandError` if the file is missing or wrong."""
    try:
        return read_config(path)
    except ValueError as error:
        raise CommandError(str(error)) from None


def backend(target: Target) -> str:
    """Return the name of the Triton backend that runs the target's models."""
    return "python" if target == "cpu" else target


def for_target(config: Any, target: Target) -> Any:
    """Return the configuration with the target's backend; instances that git's file asks for stay."""
    adapted = _copy(config)
    adapted.backend = backend(target)
    for group in adapted.instance_group or [adapted.instance_group.add(count=1)]:
        if target == "cpu":
            group.kind = Groups.KIND_CPU
        elif target == "tensorrt" and group.kind == Groups.KIND_AUTO:
            group.kind = Groups.KIND_GPU
    return adapted


def for_cpu(config: Any, graph: Graph) -> Any:
    """Return the configuration for the CPU target; instances and batching that git's file describes stay.

    A graph with convolutions gets two instances instead of batches. A batch saves reading the weights for
    each record, but a convolution reads them once for a whole picture anyway: a batch of pictures costs as
    much as the pictures one by one, takes more memory, and all wait for the last. Two instances that share
    the cores (see onnx_cpu/model.py) do better than many threads on one picture, which wait for
    each other.
    """
    adapted = for_target(config, "cpu")
    if not graph.convolves:
        return adapted
    if not adapted.dynamic_batching.ListFields():
        adapted.ClearField("dynamic_batching")
    if not config.instance_group:
        adapted.instance_group[0].count = CONVOLUTION_INSTANCES
    return adapted


def from_graph(
    graph: Graph,
    name: str,
    largest: int,
    preferred: int = 0,
    ranges: Mapping[str, tuple[int, int, int]] = MappingProxyType({}),
) -> Any:
    """Describe a graph: its tensors, dynamic batching, and a warm-up, so that Triton is ready only after the
    first, slow call.

    Args:
        graph: A graph whose first sizes are fixed gets no batching.
        name: The model's name.
        largest: The largest batch.
        preferred: A batch size that is worth waiting for; 0: none.
        ranges: The smallest, optimal and largest of each free size, by name. The warm-up has the optimal one.
    """
    config = model_config_pb2.ModelConfig(name=name, max_batch_size=largest if graph.batched else 0)
    add_tensors(config.input, graph.inputs, batched=graph.batched)
    add_tensors(config.output, graph.outputs, batched=graph.batched)
    if graph.batched:
        config.dynamic_batching.SetInParent()
        if preferred > 1:
            config.dynamic_batching.preferred_batch_size.append(preferred)
    warmup = config.model_warmup.add(name="zeros", batch_size=1)
    for value, tensor in zip(graph.inputs, config.input, strict=True):
        sample = warmup.inputs[tensor.name]
        sample.data_type, sample.zero_data = tensor.data_type, True
        sizes = value.sizes[1:] if graph.batched else value.sizes
        sample.dims.extend(
            size if isinstance(size, int) else ranges.get(size, (1, WARM_UP_SIZE, 1))[1] for size in sizes
        )
    return config


def add_tensors(tensors: Any, values: Sequence[Value], *, batched: bool) -> None:
    """Add a graph's inputs or outputs to those of a configuration."""
    for value in values:
        dims = value.shape[1:] if batched else value.shape
        datatype = model_config_pb2.DataType.Value(value.datatype)
        tensors.add(name=value.name, data_type=datatype, dims=dims)


def merge(generated: Any, written: Any) -> Any:
    """Return ``generated`` with each field that ``written`` has replaced."""
    merged = _copy(generated)
    _clear_replaced(merged, written)
    merged.MergeFrom(written)
    return merged


def _copy(config: Any) -> Any:
    copy = model_config_pb2.ModelConfig()
    copy.CopyFrom(config)
    return copy


def _clear_replaced(config: Any, written: Any) -> None:
    """Clear the fields that ``written`` replaces; an empty ``dynamic_batching { }`` replaces none."""
    for descriptor, value in written.ListFields():
        if hasattr(value, "ListFields") and config.HasField(descriptor.name):
            _clear_replaced(getattr(config, descriptor.name), value)
        else:
            config.ClearField(descriptor.name)


def difference(generated: Any, final: Any, name: str) -> list[str]:
    """Return what the file ``name`` changed, as the lines of a diff."""
    lines = (write_config(generated).splitlines(), write_config(final).splitlines())
    return list(difflib.unified_diff(*lines, "from the graph", f"with {name}", lineterm="", n=1))


def check(config: Any, graph: Path, path: Path) -> None:
    """Compare a configuration with its graph. Raises :class:`CommandError` if the tensors differ."""
    actual = Graph.read(graph)
    batched = config.max_batch_size > 0
    for kind, tensors, values in (
        ("inputs", config.input, actual.inputs),
        ("outputs", config.output, actual.outputs),
    ):
        configured = sorted(_describe(tensor, batched) for tensor in tensors)
        expected = sorted((value.name, value.datatype, value.shape) for value in values)
        if configured != expected:
            raise CommandError(
                f"{path} says {_format(configured)} of its {kind}; the model has {_format(expected)}."
            )


def _describe(tensor: Any, batched: bool) -> Tensor:
    datatype = model_config_pb2.DataType.Name(tensor.data_type)
    return tensor.name, datatype, (-1, *tensor.dims) if batched else tuple(tensor.dims)


def _format(tensors: list[Tensor]) -> str:
    return ", ".join(f"{name} {datatype[5:]} {list(shape)}" for name, datatype, shape in tensors) or "nothing"


#: A configuration that begins with this line may be overwritten; one without it is hand-written.
GENERATED_MARK = "# Written by sm build-model. Without this line it is yours: it will be kept as it is.\n"


@dataclass(frozen=True)
class Configuration:
    """``final`` is the ``ModelConfig``. ``is_hand_written``: it is the user's and must not be written."""

    final: Any
    is_hand_written: bool
    #: The known ranges, by the names of free sizes.
    ranges: Mapping[str, Range]


@dataclass(frozen=True)
class WarmUp:
    """The first, slow call that Triton makes before it is ready."""

    sizes: Sizes = field(default_factory=dict)
    #: False: no sizes are known at which the graph answers.
    possible: bool = True


def configure(
    request: BuildRequest, graph: Graph, models: Path, say: Callable[[str], None], warm_up: WarmUp
) -> Configuration:
    """Configure for the request. Raises :class:`CommandError` if a hand-written file does not fit it."""
    path = request.out / request.model / "config.pbtxt"
    is_own = path.is_file() and not path.read_text(errors="replace").startswith(GENERATED_MARK)
    path = path if is_own else models / request.model / "config.pbtxt"
    if not path.is_file():
        ranges = build_request.ranges(request, graph, build_request.MAX_BATCH)
        return Configuration(_generate(request, graph, ranges, warm_up), False, ranges)
    final = parse(path) if is_own else adapt_config(read(path), request.changes, graph)
    if is_own and final.backend != backend(request.target):
        raise CommandError(
            f"{path} was not written by sm build-model and has the backend {final.backend!r} where "
            f"{request.target} wants {backend(request.target)!r}: change it there, or build with another "
            "--out."
        )
    ranges = build_request.ranges(request, graph, final.max_batch_size or build_request.MAX_BATCH)
    generated = _generate(request, graph, ranges, warm_up)
    if not is_own:
        if generated.max_batch_size and (request.batch or request.shapes):
            final.max_batch_size = generated.max_batch_size  # the request overrides the file
        final = _adapt_to_target(request, graph, merge(generated, final))
    check(final, graph.path, path)
    if final.max_batch_size > generated.max_batch_size:
        raise CommandError(
            f"{path} has max_batch_size {final.max_batch_size}, which is more than the "
            f"{generated.max_batch_size} asked for: change it there, or ask for more with --batch."
        )
    for line in difference(generated, final, str(path)):
        say(line)
    return Configuration(final, is_own, ranges)


def _generate(request: BuildRequest, graph: Graph, ranges: Mapping[str, Range], warm_up: WarmUp) -> Any:
    _, best, largest = ranges[str(graph.inputs[0].sizes[0])] if graph.batched else (1, 1, 1)
    preferred = best if request.target == "tensorrt" and best < largest else 0
    known = {name: (size, size, size) for name, size in warm_up.sizes.items()} | dict(ranges)
    config = from_graph(graph, request.model, largest, preferred, known)
    if not warm_up.possible:
        config.ClearField("model_warmup")
    return _adapt_to_target(request, graph, config)


def _adapt_to_target(request: BuildRequest, graph: Graph, config: Any) -> Any:
    if request.target == "cpu":
        for name, value in request.wanted.parameters().items():
            config.parameters[name].string_value = value
        return for_cpu(config, graph)
    return for_target(config, request.target)


def adapt_config(written: Any, changes: Collection[Change], graph: Graph) -> Any:
    """Describe the tensors that ``changes`` affect, in a copy of the unchanged graph's configuration."""
    adapted = _copy(written)
    for tensors, values, affecting in (
        (adapted.input, graph.inputs, {"uint8", "nms"}),
        (adapted.output, graph.outputs, {"nms", "masks"}),
    ):
        if affecting.intersection(changes):
            del tensors[:]
            add_tensors(tensors, values, batched=graph.batched)
    return adapted
