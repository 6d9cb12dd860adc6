"""Which outputs of a graph OpenVINO computes as ONNX Runtime does, and for which inputs.

OpenVINO's processor plugin keeps 64-bit integers in 32 bits and computes some operators of them in float32;
it saturates bytes, drops NaN, and computes float64 as float32. :data:`TABLE` has what was measured. Here the
graph is read, as OpenVINO has it, and the range of each value is followed from the inputs to the outputs.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

#: The release that was measured; ``tests/integration/triton/test_exactness.py`` measures again.
MEASURED = "2026.4"
#: The largest whole number that OpenVINO keeps, and the largest that float32 has with all smaller ones.
INT32, FLOAT32 = 2**31 - 1, 2**24
#: The largest free size, and the longest list that a loop makes.
SIZE = 2**24
#: Constants of more numbers than this, such as weights, may have any value.
MAX_READ = 2**20
INF = math.inf
#: The node of an output has the output's name and this.
RESULT = "/sink_port_0"


class Known(NamedTuple):
    """The range of a value, as far as it is known."""

    low: float = -INF
    high: float = INF
    may_be_nan: bool = False
    #: The origin of the value: 0 the graph alone, 1 the sizes of the inputs, 2 a caller's numbers.
    origin: int = 0
    #: The operator that OpenVINO computes otherwise; empty if there is none before this value.
    wrong: str = ""


class Case(NamedTuple):
    """An operator with what is known of its inputs."""

    node: Any
    inputs: Sequence[Known]
    #: The most numbers along a free size.
    size: int

    def count(self, axes: Sequence[int] | None = None) -> int:
        """Return how many numbers the first input has along the axes, or along those of the second input."""
        shape = [*self.node.input(0).get_partial_shape()]
        if axes is None:
            axes = range(len(shape))
            if self.node.get_input_size() > 1:
                source: Any = self.node.input_value(1).get_node()
                axes = source.get_data().ravel().tolist() if source.get_type_name() == "Constant" else axes
        return math.prod(
            self.size if shape[axis].is_dynamic else max(1, shape[axis].get_length()) for axis in axes
        )


Span = tuple[float, float]


def _product(one: float, other: float) -> float:
    return 0.0 if 0 in (one, other) else one * other


def _union(case: Case) -> Span:
    return min(each.low for each in case.inputs), max(each.high for each in case.inputs)


def _first(case: Case) -> Span:
    return case.inputs[0].low, case.inputs[0].high


def _ends(operation: Callable[..., float]) -> Callable[[Case], Span]:
    """Return the span of an operation that only grows, or only shrinks, along each of its inputs."""

    def span(case: Case) -> Span:
        corners = [operation(*each) for each in itertools.product(*(known[:2] for known in case.inputs))]
        numbers = [each for each in corners if not math.isnan(each)]  # infinity less infinity
        return min(numbers, default=-INF), max(numbers, default=INF)

    return span


def _times(case: Case) -> Span:
    low, high = _ends(_product)(case)
    is_square = case.node.input_value(0) == case.node.input_value(1)
    return (max(0, low) if is_square else low), high


def _quotient(case: Case) -> Span:
    one, other = case.inputs
    if other.low <= 0 <= other.high:
        # Whole numbers do not grow.
        largest = INF if _kind(case.node.output(0)) == "f" else max(map(abs, one[:2]))
        return -largest, largest
    corners = [
        _product(left, 1 / right) if math.isfinite(right) else 0 for left in one[:2] for right in other[:2]
    ]
    return min(corners), max(corners)


def _power(case: Case) -> Span:
    base, exponent = case.inputs
    largest = max(abs(base.low), abs(base.high), 1)
    with np.errstate(over="ignore"):
        highest = float(np.power(float(largest), max(float(exponent.high), 0.0)))
    is_even = exponent.low == exponent.high and exponent.low % 2 == 0
    return (0 if base.low >= 0 or is_even else -highest), highest


def _clamped(case: Case) -> Span:
    said, (low, high) = case.node.get_attributes(), _first(case)
    return max(low, said["min"]), max(min(high, said["max"]), said["min"])


def _magnitude(case: Case) -> Span:
    low, high = _first(case)
    return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def _remainder(case: Case) -> Span:
    largest = max(map(abs, case.inputs[1][:2]))
    return (0 if min(case.inputs[0].low, case.inputs[1].low) >= 0 else -largest), largest


def _bits(case: Case) -> Span:
    largest = max(abs(each) for known in case.inputs for each in known[:2])
    bound = 2 ** int(largest).bit_length() if math.isfinite(largest) else INF
    return (0 if all(known.low >= 0 for known in case.inputs) else -bound), bound - 1


def _total(case: Case) -> Span:
    (low, high), count = _first(case), case.count()
    return min(low, _product(low, count)), max(high, _product(high, count))


def _running_total(case: Case) -> Span:
    (low, high), count = _first(case), max(case.count([axis]) for axis in range(_rank(case.node.input(0))))
    return min(low, _product(low, count)), max(high, _product(high, count))


def _total_product(case: Case) -> Span:
    largest = max(1, *map(abs, _first(case)))
    try:
        highest = float(largest) ** case.count()
    except OverflowError:
        highest = INF
    return (0 if case.inputs[0].low >= 0 else -highest), highest


def _total_of_products(case: Case) -> Span:
    low, high = _ends(_product)(case)
    axis = -2 if case.node.get_attributes().get("transpose_a") else -1
    rank = _rank(case.node.input(0))
    count = case.count([axis if rank > 1 else 0]) if rank else case.size
    return min(0, _product(low, count)), max(0, _product(high, count))


def _converted(case: Case) -> Span:
    kind = _kind(case.node.output(0))
    return (0, 1) if kind == "?" else _first(case)


def _span(low: float, high: float) -> Callable[[Case], Span]:
    return lambda _: (low, high)


def _index(case: Case) -> Span:
    return -1, case.size


def _sizes(case: Case) -> Span:
    counts = [case.count([axis]) for axis in range(_rank(case.node.input(0)))]
    return 0, max(counts, default=case.size)


class Rule(NamedTuple):
    """How OpenVINO computes an operator: like ONNX Runtime while its whole numbers are within ``exact``."""

    exact: float
    span: Callable[[Case], Span]


def _each(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


#: Up to how large a number the whole numbers of OpenVINO's operators are right. Those of others never are.
TABLE: Mapping[str, Rule] = {
    **_each(
        "Broadcast Concat Gather GatherElements GatherND Identity OneHot Pad Reshape", Rule(INT32, _union)
    ),
    **_each("Range Result ScatterElementsUpdate ScatterNDUpdate Select Slice Split", Rule(INT32, _union)),
    **_each("Squeeze Tile Transpose Unsqueeze VariadicSplit", Rule(INT32, _union)),
    "Add": Rule(INT32, _ends(operator.add)),
    "Subtract": Rule(INT32, _ends(operator.sub)),
    "Multiply": Rule(INT32, _times),
    "Abs": Rule(INT32, _magnitude),
    "Negative": Rule(INT32, _ends(operator.neg)),
    "Sign": Rule(INT32, _span(-1, 1)),
    "CumSum": Rule(INT32, _running_total),
    "Convert": Rule(INT32, _converted),
    **_each("BitwiseAnd BitwiseOr BitwiseXor BitwiseNot", Rule(INT32, _bits)),
    **_each("LogicalAnd LogicalOr LogicalNot LogicalXor", Rule(INT32, _span(0, 1))),
    **_each("TopK NonZero NonMaxSuppression", Rule(INT32, _index)),
    "ShapeOf": Rule(INT32, _sizes),
    # Computed in float32, some of them only of some shapes or beside a constant.
    **_each("Equal Greater GreaterEqual Less LessEqual", Rule(FLOAT32, _span(0, 1))),
    "Maximum": Rule(FLOAT32, _ends(max)),
    "Minimum": Rule(FLOAT32, _ends(min)),
    "Divide": Rule(FLOAT32, _quotient),
    "Power": Rule(FLOAT32, _power),
    "Relu": Rule(FLOAT32, _ends(lambda number: max(0, number))),
    "Clamp": Rule(FLOAT32, _clamped),
    "MatMul": Rule(FLOAT32, _total_of_products),
    "ReduceSum": Rule(FLOAT32, _total),
    "ReduceProd": Rule(FLOAT32, _total_product),
    **_each("Mod FloorMod", Rule(FLOAT32, _remainder)),
    **_each("ReduceMax ReduceMin ReduceMean", Rule(FLOAT32, _first)),
    # These concern floats alone: their ranges tell which roots, logarithms and quotients are never NaN.
    **_each("IsNaN IsInf", Rule(0, _span(0, 1))),
    **_each("Sigmoid Softmax", Rule(0, _span(0, 1))),
    **_each("Tanh Erf", Rule(0, _span(-1, 1))),
    **_each("Exp ReduceL2", Rule(0, _span(0, INF))),
    "Sqrt": Rule(0, _ends(lambda number: math.sqrt(max(0, number)))),
    **_each("MaxPool AvgPool Floor Ceiling Round", Rule(0, _first)),
    "FakeQuantize": Rule(0, lambda case: _union(case._replace(inputs=case.inputs[3:]))),
}
#: Operators that take NaN for a number, or for another one than ONNX Runtime does.
DROPS_NAN = {
    *("Celu", "Clamp", "Convert", "Elu", "Exp", "FakeQuantize", "Gelu", "Greater", "GreaterEqual"),
    *("HardSigmoid", "LogSoftmax", "Maximum", "MaxPool", "Minimum", "NonMaxSuppression"),
    *("ReduceLogSumExp", "ReduceMax", "ReduceMin", "Relu", "Selu", "Softmax", "TopK"),
}
#: Operators beside which a constant beyond 32 bits does no harm: it becomes the nearest number within.
NEAREST = {"Maximum", "Minimum", "Equal", "Greater", "GreaterEqual", "Less", "LessEqual"}
#: The inputs that are data, by operator; of :data:`SIZED`, the first; of others, all.
DATA: Mapping[str, Sequence[int]] = {"Pad": (0, 3), "OneHot": (0, 2, 3), "Gather": (0, 1), "ShapeOf": ()}
SIZED = {
    *("Broadcast", "CumSum", "Interpolate", "Reshape", "Slice", "Split", "Squeeze"),
    *("Tile", "TopK", "Transpose", "Unsqueeze", "VariadicSplit", "ReduceL1", "ReduceL2", "ReduceMax"),
    *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
}
#: Operators that choose where something lies: their numbers are the graph's, not a caller's.
PLACES = {"TopK", "NonZero", "NonMaxSuppression", "ShapeOf"}
#: Operators that leave a caller's numbers as they are.
SAME = {"Convert", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Broadcast", "Transpose", "Tile"}
#: Inputs that are NaN-free give NaN for bases beyond these.
DOMAINS: Mapping[str, Span] = {
    "Sqrt": (0, INF),
    "Log": (0, INF),
    "Acos": (-1, 1),
    "Asin": (-1, 1),
    "Acosh": (1, INF),
    "Atanh": (-1, 1),
}


def _kind(value: Any) -> str:
    """Return numpy's letter for a value's type, ``?`` for booleans; V for what numpy does not have."""
    name = value.get_element_type().get_type_name()
    if name in ("boolean", "u1"):
        return "?"
    return {"f": "f", "i": "i", "u": "u"}.get(name[0], "V")


def _width(value: Any) -> int:
    return int(value.get_element_type().get_size())


def _rank(value: Any) -> int:
    shape = value.get_partial_shape()
    return 0 if shape.rank.is_dynamic else len(shape)


def _limits(value: Any) -> Span:
    """Return what a type can have."""
    kind = _kind(value)
    if kind == "?":
        return 0, 1
    bits = 8 * _width(value)
    return {"i": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), "u": (0, 2**bits - 1)}.get(kind, (-INF, INF))


@dataclass(frozen=True)
class Trust:
    """The outputs and inputs for which OpenVINO is trusted."""

    #: Outputs that ONNX Runtime has to compute, with the operator why.
    wrong: Mapping[str, str] = field(default_factory=dict)
    #: Smallest and largest number by input.
    limits: Mapping[str, Span] = field(default_factory=dict)
    #: The largest size of an input.
    size: int = SIZE

    def __str__(self) -> str:
        return ", ".join(f"{name} ({operator})" for name, operator in self.wrong.items())

    def takes(self, wanted: Sequence[str], feed: Mapping[str, Any]) -> bool:
        """True if OpenVINO's answer to this request is ONNX Runtime's."""
        return not any(name in self.wrong for name in wanted) and all(map(self._takes, feed, feed.values()))

    def _takes(self, name: str, array: Any) -> bool:
        if not array.size or array.dtype.kind not in "iuf":
            return True
        is_within = bool(array.dtype.kind != "f" or np.isfinite(array).all())
        if name in self.limits:
            low, high = self.limits[name]
            is_within = is_within and bool(array.min() >= low and array.max() <= high)
        return is_within and max(array.shape, default=1) <= self.size


def read(model: Any) -> Trust:
    """Read OpenVINO's model; make its choice of equal numbers the first, as ONNX Runtime's is.

    A graph may be right for small numbers or short lists only: then those are its limits.
    """
    reader = _Reader(model)
    wide = reader.judge(INT32, SIZE)
    if not wide:
        return Trust({}, reader.limits(INT32))
    least = reader.judge(1, 2**5)
    sizes = [2**power for power in range(5, 25)]
    size = _last(sizes, lambda size: reader.judge(1, size).keys() == least.keys())
    numbers = [*(2**power for power in range(31)), INT32]
    number = _last(numbers, lambda number: reader.judge(number, size).keys() == least.keys())
    return Trust(least, reader.limits(number), size)


def _last(values: Sequence[int], is_good: Callable[[int], bool]) -> int:
    """Return the last value that is good; the first is, and none is after one that is not."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_good(values[middle]) else (low, middle)
    return values[low]


class _Reader:
    """Follows the ranges of values through a model and the bodies inside it."""

    def __init__(self, model: Any) -> None:
        self.nodes = model.get_ordered_ops()
        self.constants: dict[str, Known] = {}
        #: Rows of the tables that inputs index.
        self.rows: dict[str, int] = {}
        for node in self._all(self.nodes):
            if node.get_type_name() == "TopK" and node.get_attributes()["sort"] != "none":
                node.set_attribute("stable", True)
                node.validate_and_infer_types()
            elif node.get_type_name() == "Gather" and (rows := _rows(node)) is not None:
                source = _source(node.input_value(1))
                if source.get_type_name() == "Parameter":
                    name = source.get_friendly_name()
                    self.rows[name] = min(rows, self.rows.get(name, rows))

    def _all(self, nodes: Sequence[Any]) -> Iterator[Any]:
        for node in nodes:
            yield node
            for body in _bodies(node):
                yield from self._all(body.get_ordered_ops())

    def limits(self, number: float) -> dict[str, Span]:
        """Return the limits of the inputs."""
        found = {}
        for node in self.nodes:
            if node.get_type_name() == "Parameter":
                low, high = self._input(node, number)
                if math.isfinite(low):
                    found[node.get_friendly_name()] = (low, high)
        return found

    def _input(self, node: Any, number: float) -> Span:
        low, high = _limits(node.output(0))
        if math.isfinite(high) or number < INT32:
            low, high = max(low, -number), min(high, number)
        if rows := self.rows.get(node.get_friendly_name()):
            low, high = max(low, -rows), min(high, rows - 1)
        return low, high

    def judge(self, number: float, size: int) -> dict[str, str]:
        """Return the outputs that may be wrong if inputs are at most so large, with the operator why."""
        known = self._follow(self.nodes, {}, number, size)
        results = [node for node in self.nodes if node.get_type_name() == "Result"]
        return {
            node.get_friendly_name().removesuffix(RESULT): known[node.get_name(), 0].wrong
            for node in results
            if known[node.get_name(), 0].wrong
        }

    def _follow(
        self, nodes: Sequence[Any], given: Mapping[str, Known], number: float, size: int
    ) -> dict[tuple[str, int], Known]:
        known: dict[tuple[str, int], Known] = {}
        for node in nodes:
            kind, name = node.get_type_name(), node.get_name()
            if kind == "Constant":
                found = [self._constant(node)]
            elif kind == "Parameter":
                found = [given.get(name) or Known(*self._input(node, number), origin=2)]
            else:
                inputs = [
                    known[value.get_node().get_name(), value.get_index()] for value in node.input_values()
                ]
                if bodies := _bodies(node):
                    found = [self._inside(node, bodies, inputs, number, size)] * node.get_output_size()
                else:
                    found = _judge(Case(node, inputs, size))
            for place, each in enumerate(found):
                known[name, place] = each
        return known

    def _constant(self, node: Any) -> Known:
        name = node.get_name()
        if name not in self.constants:
            output, found = node.output(0), Known(*_limits(node.output(0)))
            if _kind(output) in "iuf?" and math.prod(node.shape) <= MAX_READ and math.prod(node.shape):
                data = node.get_data()
                numbers = data if data.dtype.kind in "iu" else data.astype(np.float64)
                has_nan = bool(np.isnan(numbers).any())
                low, high = (
                    np.nan_to_num(each, nan=0.0, posinf=INF, neginf=-INF) if has_nan else each
                    for each in (numbers.min(), numbers.max())
                )
                found = Known(low.item(), high.item(), has_nan)
            self.constants[name] = found
        return self.constants[name]

    def _inside(
        self, node: Any, bodies: Sequence[Any], inputs: Sequence[Known], number: float, size: int
    ) -> Known:
        """Return what is known of all outputs of a branch or a loop."""
        found = []
        for place, body in enumerate(bodies):
            parts = node.get_input_descriptions(*([place] if node.get_type_name() == "If" else []))
            parameters, given = body.get_parameters(), {}
            for part in parts:
                parameter = parameters[part.body_parameter_index]
                outer = inputs[part.input_index]
                if type(part).__name__ == "MergedInputDescription":
                    outer = Known(*_limits(parameter.output(0)), True, 2, outer.wrong)
                given[parameter.get_name()] = outer
            for parameter in parameters:
                given.setdefault(parameter.get_name(), Known(0, INT32))
            known = self._follow(body.get_ordered_ops(), given, number, size)
            found += [known[result.get_name(), 0] for result in body.get_results()]
        return _joined(found, *_union(Case(node, found, size)))


def _bodies(node: Any) -> list[Any]:
    kind = node.get_type_name()
    if kind == "If":
        return [node.get_function(0), node.get_function(1)]
    return [node.get_function()] if kind in ("Loop", "TensorIterator") else []


def _source(value: Any) -> Any:
    """Return the node that a value's numbers come from."""
    node = value.get_node()
    while node.get_type_name() in SAME:
        node = node.input_value(0).get_node()
    return node


def _rows(node: Any) -> int | None:
    """Return the rows of the table that a Gather reads; None if their number is free."""
    axis, shape = node.input_value(2).get_node(), node.input(0).get_partial_shape()
    if axis.get_type_name() != "Constant" or shape.rank.is_dynamic:
        return None
    rows = shape[int(axis.get_data().ravel()[0])]
    return None if rows.is_dynamic else int(rows.get_length())


def _joined(inputs: Sequence[Known], low: float, high: float) -> Known:
    return Known(
        low,
        high,
        any(each.may_be_nan for each in inputs),
        max((each.origin for each in inputs), default=0),
        next((each.wrong for each in inputs if each.wrong), ""),
    )


def _judge(case: Case) -> list[Known]:
    """Return what is known of the outputs of an operator."""
    node, kind = case.node, case.node.get_type_name()
    places = DATA.get(kind, (0,) if kind in SIZED else range(len(case.inputs)))
    places = [place for place in places if place < len(case.inputs)]
    data = [case.inputs[place] for place in places]
    rule = TABLE.get(kind)
    case = case._replace(inputs=case.inputs if kind == "FakeQuantize" else data)
    if kind == "Select":
        case = case._replace(inputs=data[1:])
    elif kind == "Gather" or kind in ("GatherElements", "GatherND"):
        case = case._replace(inputs=data[:1])
    elif kind.startswith("Scatter"):
        case = case._replace(inputs=[data[0], data[2]])
    low, high = rule.span(case) if rule else (-INF, INF)
    joined = _joined(data, low, high)
    if kind in PLACES:
        joined = joined._replace(origin=int(kind == "ShapeOf"))
    if not joined.wrong and (fault := _fault(case, rule, data, places, joined)):
        joined = joined._replace(wrong=f"{kind} of {fault}")
    if _makes_nan(kind, case):
        joined = joined._replace(may_be_nan=True)
    found = [joined] * node.get_output_size()
    if kind == "TopK":
        found[0] = joined._replace(low=data[0].low, high=data[0].high)
    return found


def _fault(case: Case, rule: Rule | None, data: Sequence[Known], places: Sequence[int], result: Known) -> str:
    """Return the type for which OpenVINO computes an operator otherwise; empty if there is none."""
    node, kind = case.node, case.node.get_type_name()
    outputs = node.outputs()
    if kind == "ShapeOf":
        return ""
    types = [node.input(place) for place in places]
    for value in (*types, *outputs):
        if value.get_element_type().get_type_name() in ("f64", "string"):
            return str(value.get_element_type().get_type_name())
    if kind in DROPS_NAN and any(each.may_be_nan for each in data):
        return "NaN"
    output = outputs[0]
    name = str(output.get_element_type().get_type_name())
    whole = [
        known
        for known, value in zip(data, types, strict=True)
        if _kind(value) in "iu"
        and not (kind in NEAREST and value.get_source_output().get_node().get_type_name() == "Constant")
    ]
    if kind == "Result" and (
        name == "bf16" or (whole and _source(node.input_value(0)).get_type_name() == "FakeQuantize")
    ):
        return name
    if kind == "Gather" and data[1].origin:
        rows = _rows(node)
        if data[1].origin == 2 if rows is None else data[1].low < -rows or data[1].high >= rows:
            return "an index"
    if kind in ("Divide", "Mod", "FloorMod") and whole and data[1].low <= 0 <= data[1].high:
        return "a division by zero"
    is_one = kind == "TopK" and (known := node.input_value(1).get_node()).get_type_name() == "Constant"
    if kind == "TopK" and node.get_attributes()["sort"] == "none" and not (is_one and known.get_data() == 1):
        return "equal numbers"
    if kind.startswith("Scatter") and node.get_attributes().get("reduction", "none") != "none":
        return "a reduction"
    exact = rule.exact if rule else 0
    if kind == "Convert" and _kind(output) == "?":
        exact = FLOAT32
    if kind in ("Mod", "FloorMod") and not whole:
        return name
    if any(max(abs(known.low), abs(known.high)) > exact + 1 for known in whole):
        return name
    if _kind(output) in "iu" and kind not in PLACES:
        low, high = _limits(output)
        is_byte = _width(output) < 4
        if not exact or (is_byte and kind == "Divide"):
            return name
        if result.low < max(low, -exact - 1) or result.high > min(high, exact):
            return name
    return ""


def _makes_nan(kind: str, case: Case) -> bool:
    """True if an operator may make NaN of numbers."""
    if kind in ("Divide", "Mod", "FloorMod"):
        return _kind(case.node.output(0)) == "f" and case.inputs[1].low <= 0 <= case.inputs[1].high
    if kind == "Power":
        base, exponent = case.inputs
        return base.low < 0 and not (exponent.low == exponent.high and float(exponent.low).is_integer())
    low, high = DOMAINS.get(kind, (-INF, INF))
    return bool(case.inputs) and (case.inputs[0].low < low or case.inputs[0].high > high)
