"""``config.pbtxt``, through Triton's own protobuf: what git says of a model, and what a target adds.

Git's file names tensors, sizes and batching, the same for every target. How a model is run (its
backend, its instances) belongs to the target, so a line of that kind in git's file is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from sm.errors import StartError

#: Fields of ModelConfig that a target sets.
TARGET_FIELDS = ("backend", "platform", "runtime", "default_model_filename", "optimization")

#: ONNX element types as Triton calls them.
DATATYPES = {
    onnx.TensorProto.FLOAT: "TYPE_FP32",
    onnx.TensorProto.FLOAT16: "TYPE_FP16",
    onnx.TensorProto.DOUBLE: "TYPE_FP64",
    onnx.TensorProto.INT8: "TYPE_INT8",
    onnx.TensorProto.INT16: "TYPE_INT16",
    onnx.TensorProto.INT32: "TYPE_INT32",
    onnx.TensorProto.INT64: "TYPE_INT64",
    onnx.TensorProto.UINT8: "TYPE_UINT8",
    onnx.TensorProto.BOOL: "TYPE_BOOL",
}

#: Name, Triton's datatype, and the dimensions with -1 for any size.
Tensor = tuple[str, str, tuple[int, ...]]


def read(path: Path) -> Any:
    """The ``ModelConfig`` of git's file; :class:`StartError` names the file and what is wrong in it."""
    try:
        config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
    except FileNotFoundError:
        raise StartError(f"{path} is missing.") from None
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise StartError(f"{path} is no Triton configuration: {error}.") from None
    if config.name != path.parent.name:
        raise StartError(f"{path} names the model {config.name!r}; its folder is {path.parent.name!r}.")
    for field in TARGET_FIELDS:
        if field in {descriptor.name for descriptor, _ in config.ListFields()}:
            raise StartError(f"{path} sets {field!r}, which belongs to the target that runs the model.")
    return config


def for_cpu(config: Any) -> Any:
    """The same model for Triton's python backend on processors; instances that git's file asks for stay."""
    merged = model_config_pb2.ModelConfig()
    merged.CopyFrom(config)
    merged.backend = "python"
    for group in merged.instance_group or [merged.instance_group.add(count=1)]:
        group.kind = model_config_pb2.ModelInstanceGroup.KIND_CPU
    return merged


def check(config: Any, graph: Path, path: Path) -> None:
    """:class:`StartError` unless the graph takes and gives exactly what the configuration says."""
    onnx_graph = onnx.load(graph, load_external_data=False).graph
    weights = {initializer.name for initializer in onnx_graph.initializer}
    batched = config.max_batch_size > 0
    for kind, configured, values in (
        ("inputs", config.input, [value for value in onnx_graph.input if value.name not in weights]),
        ("outputs", config.output, onnx_graph.output),
    ):
        said = sorted(_configured(tensor, batched) for tensor in configured)
        found = sorted(_of_graph(value) for value in values)
        if said != found:
            raise StartError(f"{path} says {_shown(said)} of its {kind}; the model has {_shown(found)}.")


def text(config: Any) -> str:
    """As Triton reads it."""
    return str(text_format.MessageToString(config))


def _configured(tensor: Any, batched: bool) -> Tensor:
    datatype = model_config_pb2.DataType.Name(tensor.data_type)
    return tensor.name, datatype, (-1, *tensor.dims) if batched else tuple(tensor.dims)


def _of_graph(value: Any) -> Tensor:
    kind = value.type.tensor_type
    sizes = tuple(size.dim_value if size.HasField("dim_value") else -1 for size in kind.shape.dim)
    return value.name, DATATYPES.get(kind.elem_type, "TYPE_INVALID"), sizes


def _shown(tensors: list[Tensor]) -> str:
    return ", ".join(f"{name} {datatype[5:]} {list(shape)}" for name, datatype, shape in tensors) or "nothing"
