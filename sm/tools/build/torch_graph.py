"""Convert an ONNX graph to a PyTorch program with ``torch.export``.

onnx2torch was looked at first: it imports torchvision for its suppression of boxes, which must fit the torch
beside it to the build, and its last release is of 2024. The operators here are those of the demo's graphs and
their usual neighbours; each is a line or a few, and an unknown one is named.
"""

# ruff: noqa: ARG001, ARG005 - every operator is given its node's attributes
from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from sm.errors import StartError
from sm.tools.build.exporting import import_needed
from sm.tools.build.onnx_graph import Graph
from sm.tools.build.random_inputs import Feed

#: torch treats a size of 1 as a constant, so a program is traced with two records, of so many words.
TRACED, WORDS = 2, 12
#: The longest free size, such as a text's length, if the model does not set a limit.
LONGEST = 512
#: torch's names of ONNX element types.
DTYPES = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.INT16: "int16",
    onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.INT64: "int64",
    onnx.TensorProto.UINT8: "uint8",
    onnx.TensorProto.BOOL: "bool",
}
#: Triton's types and torch's.
TRITON_DTYPES = {
    "TYPE_FP32": "float32",
    "TYPE_FP16": "float16",
    "TYPE_FP64": "float64",
    "TYPE_INT8": "int8",
    "TYPE_INT16": "int16",
    "TYPE_INT32": "int32",
    "TYPE_INT64": "int64",
    "TYPE_UINT8": "uint8",
    "TYPE_BOOL": "bool",
}


class TorchProgram:
    """A saved program, run on this machine's processor with the interface of an ONNX Runtime session."""

    def __init__(self, path: Path, graph: Graph) -> None:
        self.torch = import_needed("torch")
        self.module = self.torch.export.load(path).module()
        self.inputs = [value.name for value in graph.inputs]
        self.outputs = [value.name for value in graph.outputs]

    def run(self, names: list[str], feed: Feed, /) -> list[Any]:
        with self.torch.inference_mode():
            answers = self.module(*(self.torch.from_numpy(np.array(feed[name])) for name in self.inputs))
        found = dict(zip(self.outputs, answers, strict=True))
        return [found[name].numpy() for name in names]


def convert(graph: Graph, out: Path, largest: int) -> str:
    """Write the graph as a program that takes batches up to ``largest``; return torch's version."""
    torch = import_needed("torch")
    module = _module(torch, graph)
    by_name: dict[str, Any] = {}
    examples, dynamic = [], []
    for value in graph.inputs:
        free = {
            place: _dimension(torch, graph, size, place, largest, by_name)
            for place, size in enumerate(value.sizes)
            if isinstance(size, str)
        }
        sizes = [
            size if isinstance(size, int) else TRACED if graph.batched and not place else WORDS
            for place, size in enumerate(value.sizes)
        ]
        examples.append(torch.ones(sizes, dtype=getattr(torch, TRITON_DTYPES[value.datatype])))
        dynamic.append(free)
    try:
        with torch.no_grad():
            program = torch.export.export(module, tuple(examples), dynamic_shapes=(tuple(dynamic),))
        torch.export.save(program, out)
    except StartError:
        raise
    except Exception as error:  # torch's own classes, of several modules
        raise StartError(f"{graph.path} cannot be exported by torch: {str(error).splitlines()[0]}") from error
    return str(torch.__version__)


def _dimension(torch: Any, graph: Graph, size: str, place: int, largest: int, by_name: dict[str, Any]) -> Any:
    if size not in by_name:
        batch = graph.batched and place == 0
        if batch and largest == 1:
            by_name[size] = None
        else:
            name = "batch" if batch else f"free_{len(by_name)}"
            by_name[size] = torch.export.Dim(name, min=1, max=max(TRACED, largest) if batch else LONGEST)
    return by_name[size]


def _module(torch: Any, graph: Graph) -> Any:
    """Wrap the graph in a module that takes its inputs in order and returns a tuple of its outputs."""
    loaded = onnx.load(graph.path)
    steps = Steps(torch, loaded)

    class Converted(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for place, constant in enumerate(steps.constants.values()):
                constant.name = f"constant_{place}"
                self.register_buffer(constant.name, constant.tensor)

        def forward(self, *tensors: Any) -> Any:
            values: dict[str, Any] = dict(zip((v.name for v in graph.inputs), tensors, strict=True))
            for name, constant in steps.constants.items():
                values[name] = Constant(constant.values, getattr(self, constant.name), constant.name)
            steps.run(values)
            return tuple(as_tensor(values[value.name]) for value in graph.outputs)

    return Converted().eval()


class Constant:
    """A constant: its numbers for what needs them now, such as a shape, and its tensor for the rest."""

    def __init__(self, values: Any, tensor: Any, name: str = "") -> None:
        self.values, self.tensor, self.name = values, tensor, name


class Steps:
    """The nodes of a graph, less those that can be computed beforehand.

    A value is a tensor, a :class:`Constant`, or a size or list of sizes, which torch keeps as symbols.
    """

    def __init__(self, torch: Any, model: Any) -> None:
        self.torch = torch
        self.opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        self.operators = operators(torch, self.opset)
        self.constants: dict[str, Constant] = {}
        self.nodes: list[tuple[Any, dict[str, Any]]] = []
        for weight in model.graph.initializer:
            self._keep(weight.name, numpy_helper.to_array(weight))
        for node in model.graph.node:
            self._add(node)

    def _add(self, node: Any) -> None:
        options = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
        if node.op_type == "Constant":
            value = options.get("value")
            number = next(iter(options.values())) if value is None else numpy_helper.to_array(value)
            self._keep(node.output[0], np.array(number))
        elif node.op_type not in self.operators or node.domain not in ("", "ai.onnx"):
            raise StartError(
                f"the torch target does not know the operator {node.op_type}: serve the model with "
                "--target onnxruntime, or leave out what adds it (--nms, --masks)."
            )
        elif all(name in self.constants for name in node.input if name):
            arguments = [self.constants[name] if name else None for name in node.input]
            results = self._call(node, options, arguments)
            for name, result in zip(node.output, results, strict=False):
                self._keep(name, np.asarray(result))
        else:
            self.nodes.append((node, options))

    def _keep(self, name: str, array: Any) -> None:
        array = np.array(array)
        self.constants[name] = Constant(array, self.torch.from_numpy(array))

    def _call(self, node: Any, options: Mapping[str, Any], arguments: Sequence[Any]) -> tuple[Any, ...]:
        result = self.operators[node.op_type](options, *arguments)
        return result if isinstance(result, tuple) else (result,)

    def run(self, values: dict[str, Any]) -> None:
        """Compute every node; ``values`` begins with inputs and constants."""
        for node, options in self.nodes:
            arguments = [values[name] if name else None for name in node.input]
            results = self._call(node, options, arguments)
            values.update(zip(node.output, results, strict=False))


def as_tensor(value: Any) -> Any:
    return value.tensor if isinstance(value, Constant) else value


def as_sizes(value: Any) -> list[Any]:
    """Return numbers that torch must know while it exports. Raises :class:`StartError` for others."""
    if isinstance(value, Constant):
        return list(value.values.reshape(-1).tolist())
    if _is_size(value):
        return value if isinstance(value, list) else [value]
    raise StartError("a size depends on the inputs' contents, which the torch target cannot take")


def _is_size(value: Any) -> bool:
    return isinstance(value, list) or type(value).__name__ in ("int", "SymInt")


def _spatial_padding(pads: Sequence[int]) -> list[int]:
    """Return ONNX's (begins, ends) as torch's pairs from the last dimension to the first."""
    half = len(pads) // 2
    return [pads[place + end * half] for place in reversed(range(half)) for end in (0, 1)]


def operators(torch: Any, opset: int) -> Mapping[str, Callable[..., Any]]:
    """Return a function for each operator: it takes the node's attributes and its inputs."""
    functional = torch.nn.functional

    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda options, *tensors: function(*map(as_tensor, tensors))

    def arithmetic(on_tensors: Callable[..., Any], on_sizes: Callable[..., Any]) -> Callable[..., Any]:
        def compute(options: Mapping[str, Any], left: Any, right: Any) -> Any:
            if not (_is_size(left) or _is_size(right)):
                return on_tensors(as_tensor(left), as_tensor(right))
            scalar = not any(isinstance(value, list) for value in (left, right)) and all(
                not isinstance(value, Constant) or value.values.ndim == 0 for value in (left, right)
            )
            lefts, rights = as_sizes(left), as_sizes(right)
            length = max(len(lefts), len(rights))
            spread = [sizes * length if len(sizes) == 1 else sizes for sizes in (lefts, rights)]
            results = [on_sizes(a, b) for a, b in zip(*spread, strict=True)]
            return results[0] if scalar else results

        return compute

    def divide(left: Any, right: Any) -> Any:
        whole = not (left.is_floating_point() or right.is_floating_point())
        return torch.div(left, right, rounding_mode="trunc" if whole else None)

    def gather(options: Mapping[str, Any], data: Any, index: Any) -> Any:
        axis = options.get("axis", 0)
        if isinstance(data, list):
            chosen = [data[int(place)] for place in as_sizes(index)]
            return chosen[0] if index.values.ndim == 0 else chosen
        data = as_tensor(data)
        if isinstance(index, Constant) and index.values.ndim == 0:
            return data.select(axis, int(index.values))
        index = as_tensor(index)
        if axis == 0 and data.ndim == 2:
            return functional.embedding(index, data)
        picked = data.index_select(axis, index.reshape(-1))
        axis %= data.ndim
        return picked.reshape([*data.shape[:axis], *index.shape, *data.shape[axis + 1 :]])

    def cut(options: Mapping[str, Any], data: Any, *bounds: Any) -> Any:
        if bounds:
            starts, ends, axes, steps = (
                as_sizes(bound) if bound is not None else None for bound in (*bounds, None, None)[:4]
            )
        else:
            starts, ends, axes, steps = (options.get(n) for n in ("starts", "ends", "axes", "steps"))
        assert starts is not None and ends is not None
        steps = steps or [1] * len(starts)
        if isinstance(data, list):
            return data[starts[0] : ends[0] : steps[0]]
        data = as_tensor(data)
        places = [slice(None)] * data.ndim
        for axis, *three in zip(axes or range(len(starts)), starts, ends, steps, strict=True):
            places[axis] = slice(*three)
        return data[tuple(places)]

    def unsqueeze(options: Mapping[str, Any], data: Any, axes: Any = None) -> Any:
        if _is_size(data):
            return data if isinstance(data, list) else [data]
        wanted = as_sizes(axes) if axes is not None else options["axes"]
        data = as_tensor(data)
        rank = data.ndim + len(wanted)
        for axis in sorted(place % rank for place in wanted):
            data = data.unsqueeze(axis)
        return data

    def squeeze(options: Mapping[str, Any], data: Any, axes: Any = None) -> Any:
        if _is_size(data):
            return as_sizes(data)[0]
        wanted = as_sizes(axes) if axes is not None else options.get("axes")
        data = as_tensor(data)
        return data.squeeze(tuple(wanted)) if wanted else data.squeeze()

    def concat(options: Mapping[str, Any], *values: Any) -> Any:
        if any(_is_size(value) for value in values):
            return [size for value in values for size in as_sizes(value)]
        return torch.cat([as_tensor(value) for value in values], options["axis"])

    def reshape(options: Mapping[str, Any], data: Any, shape: Any) -> Any:
        data, sizes = as_tensor(data), as_sizes(shape)
        kept = [
            data.shape[place] if isinstance(size, int) and size == 0 else size
            for place, size in enumerate(sizes)
        ]
        return data.reshape(kept)

    def cast(options: Mapping[str, Any], data: Any) -> Any:
        return data if _is_size(data) else as_tensor(data).to(getattr(torch, DTYPES[options["to"]]))

    def convolve(options: Mapping[str, Any], data: Any, weight: Any, bias: Any = None) -> Any:
        _no_automatic_padding(options)
        data, weight = as_tensor(data), as_tensor(weight)
        rank = weight.ndim - 2
        pads = options.get("pads", [0] * 2 * rank)
        if pads[:rank] != pads[rank:]:
            data, pads = functional.pad(data, _spatial_padding(pads)), [0] * 2 * rank
        function = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
        return function(
            data,
            weight,
            None if bias is None else as_tensor(bias),
            options.get("strides", [1] * rank),
            pads[:rank],
            options.get("dilations", [1] * rank),
            options.get("group", 1),
        )

    def max_pool(options: Mapping[str, Any], data: Any) -> Any:
        _no_automatic_padding(options)
        data, rank = as_tensor(data), len(options["kernel_shape"])
        pads = options.get("pads", [0] * 2 * rank)
        if any(pads):
            data = functional.pad(data, _spatial_padding(pads), value=-math.inf)
        function = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[rank - 1]
        return function(
            data,
            options["kernel_shape"],
            options.get("strides", [1] * rank),
            0,
            options.get("dilations", [1] * rank),
            bool(options.get("ceil_mode", 0)),
        )

    def resize(options: Mapping[str, Any], data: Any, *others: Any) -> Any:
        if options.get("mode", b"nearest") != b"nearest":
            raise StartError("the torch target resizes by the nearest neighbour alone")
        data = as_tensor(data)
        scales = others[1] if len(others) > 1 else None
        if scales is not None and scales.values.size:
            factors = [float(scale) for scale in scales.values[2:]]
            return functional.interpolate(data, scale_factor=factors, mode="nearest")
        return functional.interpolate(data, size=as_sizes(others[2])[2:], mode="nearest")

    def split(options: Mapping[str, Any], data: Any, sizes: Any = None) -> Any:
        data, axis = as_tensor(data), options.get("axis", 0)
        parts = as_sizes(sizes) if sizes is not None else options.get("split")
        if parts is None:
            raise StartError("the torch target splits tensors only where the graph says the sizes")
        return tuple(torch.split(data, parts, axis))

    def multiply_general(options: Mapping[str, Any], left: Any, right: Any, bias: Any = None) -> Any:
        left, right = as_tensor(left), as_tensor(right)
        left = left.t() if options.get("transA") else left
        right = right.t() if options.get("transB") else right
        product = left @ right
        if options.get("alpha", 1.0) != 1.0:
            product = product * options["alpha"]
        return product if bias is None else product + as_tensor(bias) * options.get("beta", 1.0)

    def softmax(function: Callable[..., Any]) -> Callable[..., Any]:
        def compute(options: Mapping[str, Any], data: Any) -> Any:
            data = as_tensor(data)
            axis = options.get("axis", -1 if opset >= 13 else 1) % data.ndim
            if opset < 13 and axis != data.ndim - 1:
                # Before opset 13 all dimensions from the axis on were one.
                return function(data.flatten(axis), dim=axis).reshape(data.shape)
            return function(data, dim=axis)

        return compute

    def reduce(function: Callable[..., Any]) -> Callable[..., Any]:
        def compute(options: Mapping[str, Any], data: Any, axes: Any = None) -> Any:
            data = as_tensor(data)
            wanted = as_sizes(axes) if axes is not None else options.get("axes", list(range(data.ndim)))
            return function(data, dim=tuple(wanted), keepdim=bool(options.get("keepdims", 1)))

        return compute

    def clip(options: Mapping[str, Any], data: Any, least: Any = None, most: Any = None) -> Any:
        bounds = [None if bound is None else bound.values.item() for bound in (least, most)]
        return as_tensor(data).clamp(
            bounds[0] if least is not None else options.get("min"),
            bounds[1] if most is not None else options.get("max"),
        )

    def normalize_layer(options: Mapping[str, Any], data: Any, scale: Any, bias: Any = None) -> Any:
        data, scale = as_tensor(data), as_tensor(scale)
        return functional.layer_norm(
            data, scale.shape, scale, None if bias is None else as_tensor(bias), options.get("epsilon", 1e-5)
        )

    def normalize_batch(
        options: Mapping[str, Any], data: Any, scale: Any, bias: Any, mean: Any, variance: Any
    ) -> Any:
        rest = map(as_tensor, (mean, variance, scale, bias))
        return functional.batch_norm(as_tensor(data), *rest, eps=options.get("epsilon", 1e-5))

    def average_pool(options: Mapping[str, Any], data: Any) -> Any:
        data = as_tensor(data)
        return data.mean(dim=tuple(range(2, data.ndim)), keepdim=True)

    return {
        "Add": arithmetic(torch.add, operator.add),
        "Sub": arithmetic(torch.sub, operator.sub),
        "Mul": arithmetic(torch.mul, operator.mul),
        "Div": arithmetic(divide, operator.floordiv),
        "BatchNormalization": normalize_batch,
        "Cast": cast,
        "Clip": clip,
        "Concat": concat,
        "Conv": convolve,
        "Erf": plain(torch.erf),
        "Expand": lambda options, data, shape: torch.broadcast_to(
            as_tensor(data), torch.broadcast_shapes(as_tensor(data).shape, as_sizes(shape))
        ),
        "Flatten": lambda options, data: as_tensor(data).flatten(options.get("axis", 1)),
        "Gather": gather,
        "Gelu": lambda options, data: functional.gelu(
            as_tensor(data), approximate=options.get("approximate", b"none").decode()
        ),
        "Gemm": multiply_general,
        "GlobalAveragePool": average_pool,
        "Identity": lambda options, data: data,
        "LayerNormalization": normalize_layer,
        "LeakyRelu": lambda options, data: functional.leaky_relu(as_tensor(data), options.get("alpha", 0.01)),
        "LogSoftmax": softmax(torch.log_softmax),
        "MatMul": plain(torch.matmul),
        "MaxPool": max_pool,
        "Pow": plain(torch.pow),
        "ReduceMean": reduce(torch.mean),
        "ReduceSum": reduce(torch.sum),
        "Relu": plain(torch.relu),
        "Reshape": reshape,
        "Resize": resize,
        "Shape": lambda options, data: list(as_tensor(data).shape),
        "Sigmoid": plain(torch.sigmoid),
        "Slice": cut,
        "Softmax": softmax(torch.softmax),
        "Split": split,
        "Sqrt": plain(torch.sqrt),
        "Squeeze": squeeze,
        "Sum": lambda options, *tensors: functools.reduce(torch.add, map(as_tensor, tensors)),
        "Tanh": plain(torch.tanh),
        "Transpose": lambda options, data: as_tensor(data).permute(
            options.get("perm", list(reversed(range(as_tensor(data).ndim))))
        ),
        "Unsqueeze": unsqueeze,
        "Where": plain(torch.where),
    }


def _no_automatic_padding(options: Mapping[str, Any]) -> None:
    if options.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise StartError("the torch target needs explicit pads, not auto_pad")
