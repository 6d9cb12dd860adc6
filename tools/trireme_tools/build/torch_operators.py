"""The operators of ONNX, computed by PyTorch, for :mod:`trireme_tools.build.torch_graph`.

A value is a tensor, a :class:`Constant`, or a size or list of sizes, which torch keeps as symbols. The
operators here are those of the demo's graphs and their usual neighbours.
"""

# ruff: noqa: ARG001, ARG002, ARG005 - every operator is given its node's attributes
from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnx.helper import tensor_dtype_to_np_dtype

from sm.errors import CommandError

Operator = Callable[..., Any]
#: The attributes of a node.
Options = Mapping[str, Any]


class Constant:
    """A constant: its numbers for what needs them now, such as a shape, and its tensor for the rest."""

    def __init__(self, values: Any, tensor: Any, name: str = "") -> None:
        self.values, self.tensor, self.name = values, tensor, name


def as_tensor(value: Any) -> Any:
    return value.tensor if isinstance(value, Constant) else value


def as_sizes(value: Any) -> list[Any]:
    """Return numbers that torch must know while it exports. Raises :class:`CommandError` for others."""
    if isinstance(value, Constant):
        return list(value.values.reshape(-1).tolist())
    if _is_size(value):
        return value if isinstance(value, list) else [value]
    raise CommandError("a size depends on the inputs' contents, which the torch target cannot take")


def _on_data(function: Operator) -> Operator:
    """Let a function have the tensor of its first input."""
    return lambda options, data, *others: function(options, as_tensor(data), *others)


def _is_size(value: Any) -> bool:
    return isinstance(value, list) or type(value).__name__ in ("int", "SymInt")


def _spatial_padding(pads: Sequence[int]) -> list[int]:
    """Return ONNX's (begins, ends) as torch's pairs from the last dimension to the first."""
    half = len(pads) // 2
    return [pads[place + end * half] for place in reversed(range(half)) for end in (0, 1)]


class Operators:
    """Functions for ONNX's operators; each takes the attributes of its node, then its inputs."""

    def __init__(self, torch: Any, opset: int) -> None:
        self.torch, self.functional, self.opset = torch, torch.nn.functional, opset

    def table(self) -> Mapping[str, Operator]:
        """Return the functions by the operators' names."""
        on_sizes: dict[str, Operator] = {
            "Add": self._arithmetic(self.torch.add, operator.add),
            "Sub": self._arithmetic(self.torch.sub, operator.sub),
            "Mul": self._arithmetic(self.torch.mul, operator.mul),
            "Div": self._arithmetic(self._divide, operator.floordiv),
            "Cast": self._cast,
            "Concat": self._concat,
            "Gather": self._gather,
            "Identity": lambda options, data: data,
            "Slice": self._slice,
            "Squeeze": self._squeeze,
            "Unsqueeze": self._unsqueeze,
        }
        names = ("Erf", "MatMul", "Pow", "Relu", "Sigmoid", "Sqrt", "Tanh", "Where")
        elementwise = {name: self._on_tensors(getattr(self.torch, name.lower())) for name in names}
        on_data: dict[str, Operator] = {
            "BatchNormalization": self._normalize_batch,
            "Clip": self._clip,
            "Conv": self._convolve,
            "Expand": lambda options, data, shape: self.torch.broadcast_to(
                data, self.torch.broadcast_shapes(data.shape, as_sizes(shape))
            ),
            "Flatten": lambda options, data: data.flatten(options.get("axis", 1)),
            "Gelu": lambda options, data: self.functional.gelu(
                data, approximate=options.get("approximate", b"none").decode()
            ),
            "Gemm": self._multiply_general,
            "GlobalAveragePool": lambda options, data: data.mean(tuple(range(2, data.ndim)), keepdim=True),
            "LayerNormalization": self._normalize_layer,
            "LeakyRelu": lambda options, data: self.functional.leaky_relu(data, options.get("alpha", 0.01)),
            "LogSoftmax": self._softmax(self.torch.log_softmax),
            "MaxPool": self._max_pool,
            "ReduceMean": self._reduce(self.torch.mean),
            "ReduceSum": self._reduce(self.torch.sum),
            "Reshape": self._reshape,
            "Resize": self._resize,
            "Shape": lambda options, data: list(data.shape),
            "Softmax": self._softmax(self.torch.softmax),
            "Split": self._split,
            "Sum": lambda options, *tensors: functools.reduce(self.torch.add, map(as_tensor, tensors)),
            "Transpose": lambda options, data: data.permute(options.get("perm", [*range(data.ndim)][::-1])),
        }
        return {**on_sizes, **elementwise, **{name: _on_data(function) for name, function in on_data.items()}}

    def _on_tensors(self, function: Operator) -> Operator:
        return lambda options, *tensors: function(*map(as_tensor, tensors))

    def _arithmetic(self, on_tensors: Operator, on_sizes: Operator) -> Operator:
        def compute(options: Options, left: Any, right: Any) -> Any:
            if not (_is_size(left) or _is_size(right)):
                return on_tensors(as_tensor(left), as_tensor(right))
            is_scalar = not any(isinstance(value, list) for value in (left, right)) and all(
                not isinstance(value, Constant) or value.values.ndim == 0 for value in (left, right)
            )
            lefts, rights = as_sizes(left), as_sizes(right)
            length = max(len(lefts), len(rights))
            broadcast = [sizes * length if len(sizes) == 1 else sizes for sizes in (lefts, rights)]
            results = [on_sizes(a, b) for a, b in zip(*broadcast, strict=True)]
            return results[0] if is_scalar else results

        return compute

    def _divide(self, left: Any, right: Any) -> Any:
        is_integer = not (left.is_floating_point() or right.is_floating_point())
        return self.torch.div(left, right, rounding_mode="trunc" if is_integer else None)

    def _gather(self, options: Options, data: Any, index: Any) -> Any:
        axis = options.get("axis", 0)
        if isinstance(data, list):
            chosen = [data[int(place)] for place in as_sizes(index)]
            return chosen[0] if index.values.ndim == 0 else chosen
        data = as_tensor(data)
        if isinstance(index, Constant) and index.values.ndim == 0:
            return data.select(axis, int(index.values))
        index = as_tensor(index)
        if axis == 0 and data.ndim == 2:
            return self.functional.embedding(index, data)
        picked = data.index_select(axis, index.reshape(-1))
        axis %= data.ndim
        return picked.reshape([*data.shape[:axis], *index.shape, *data.shape[axis + 1 :]])

    def _slice(self, options: Options, data: Any, *bounds: Any) -> Any:
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

    def _unsqueeze(self, options: Options, data: Any, axes: Any = None) -> Any:
        if _is_size(data):
            return data if isinstance(data, list) else [data]
        wanted = as_sizes(axes) if axes is not None else options["axes"]
        data = as_tensor(data)
        rank = data.ndim + len(wanted)
        for axis in sorted(place % rank for place in wanted):
            data = data.unsqueeze(axis)
        return data

    def _squeeze(self, options: Options, data: Any, axes: Any = None) -> Any:
        if _is_size(data):
            return as_sizes(data)[0]
        wanted = as_sizes(axes) if axes is not None else options.get("axes")
        data = as_tensor(data)
        return data.squeeze(tuple(wanted)) if wanted else data.squeeze()

    def _concat(self, options: Options, *values: Any) -> Any:
        if any(_is_size(value) for value in values):
            return [size for value in values for size in as_sizes(value)]
        return self.torch.cat([as_tensor(value) for value in values], options["axis"])

    def _reshape(self, options: Options, data: Any, shape: Any) -> Any:
        new_shape = [
            data.shape[place] if isinstance(size, int) and size == 0 else size
            for place, size in enumerate(as_sizes(shape))
        ]
        return data.reshape(new_shape)

    def _cast(self, options: Options, data: Any) -> Any:
        if _is_size(data):
            return data
        return as_tensor(data).to(getattr(self.torch, tensor_dtype_to_np_dtype(options["to"]).name))

    def _convolve(self, options: Options, data: Any, weight: Any, bias: Any = None) -> Any:
        _no_automatic_padding(options)
        weight = as_tensor(weight)
        rank = weight.ndim - 2
        pads = options.get("pads", [0] * 2 * rank)
        if pads[:rank] != pads[rank:]:
            data, pads = self.functional.pad(data, _spatial_padding(pads)), [0] * 2 * rank
        return getattr(self.functional, f"conv{rank}d")(
            data,
            weight,
            as_tensor(bias),
            options.get("strides", [1] * rank),
            pads[:rank],
            options.get("dilations", [1] * rank),
            options.get("group", 1),
        )

    def _max_pool(self, options: Options, data: Any) -> Any:
        _no_automatic_padding(options)
        rank = len(options["kernel_shape"])
        pads = options.get("pads", [0] * 2 * rank)
        if any(pads):
            data = self.functional.pad(data, _spatial_padding(pads), value=-math.inf)
        return getattr(self.functional, f"max_pool{rank}d")(
            data,
            options["kernel_shape"],
            options.get("strides", [1] * rank),
            0,
            options.get("dilations", [1] * rank),
            bool(options.get("ceil_mode", 0)),
        )

    def _resize(self, options: Options, data: Any, *others: Any) -> Any:
        if options.get("mode", b"nearest") != b"nearest":
            raise CommandError("the torch target resizes by the nearest neighbour alone")
        scales = others[1] if len(others) > 1 else None
        if scales is not None and scales.values.size:
            factors = [float(scale) for scale in scales.values[2:]]
            return self.functional.interpolate(data, scale_factor=factors, mode="nearest")
        return self.functional.interpolate(data, size=as_sizes(others[2])[2:], mode="nearest")

    def _split(self, options: Options, data: Any, sizes: Any = None) -> Any:
        parts = as_sizes(sizes) if sizes is not None else options.get("split")
        if parts is None:
            raise CommandError("the torch target splits tensors only where the graph says the sizes")
        return tuple(self.torch.split(data, parts, options.get("axis", 0)))

    def _multiply_general(self, options: Options, left: Any, right: Any, bias: Any = None) -> Any:
        right = as_tensor(right)
        left = left.t() if options.get("transA") else left
        product = left @ (right.t() if options.get("transB") else right)
        if options.get("alpha", 1.0) != 1.0:
            product = product * options["alpha"]
        return product if bias is None else product + as_tensor(bias) * options.get("beta", 1.0)

    def _softmax(self, function: Operator) -> Operator:
        def compute(options: Options, data: Any) -> Any:
            axis = options.get("axis", -1 if self.opset >= 13 else 1) % data.ndim
            if self.opset < 13 and axis != data.ndim - 1:
                # Before opset 13 all dimensions from the axis on were one.
                return function(data.flatten(axis), dim=axis).reshape(data.shape)
            return function(data, dim=axis)

        return compute

    def _reduce(self, function: Operator) -> Operator:
        def compute(options: Options, data: Any, axes: Any = None) -> Any:
            wanted = as_sizes(axes) if axes is not None else options.get("axes", list(range(data.ndim)))
            return function(data, dim=tuple(wanted), keepdim=bool(options.get("keepdims", 1)))

        return compute

    def _clip(self, options: Options, data: Any, least: Any = None, most: Any = None) -> Any:
        given = (("min", least), ("max", most))
        return data.clamp(
            *(options.get(name) if bound is None else bound.values.item() for name, bound in given)
        )

    def _normalize_layer(self, options: Options, data: Any, scale: Any, bias: Any = None) -> Any:
        scale, epsilon = as_tensor(scale), options.get("epsilon", 1e-5)
        return self.functional.layer_norm(data, scale.shape, scale, as_tensor(bias), epsilon)

    def _normalize_batch(self, options: Options, data: Any, *parameters: Any) -> Any:
        scale, bias, mean, variance = map(as_tensor, parameters)
        epsilon = options.get("epsilon", 1e-5)
        return self.functional.batch_norm(data, mean, variance, scale, bias, eps=epsilon)


def _no_automatic_padding(options: Options) -> None:
    if options.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise CommandError("the torch target needs explicit pads, not auto_pad")
