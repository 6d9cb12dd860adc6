"""Quantize a graph to int8 for the CPU target, within the drop that a team allows.

NNCF inserts the quantization and takes back the layers that cost most until the measure is good enough.
The measure is the team's own where its inputs have labels (accuracy, or mAP of boxes), else how often the
answers are those of fp32. Every third input is held out: neither the quantization nor its control sees it,
and the report has both figures.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sm.errors import CommandError
from trireme_extensions.convert.graph_runner import Feed
from trireme_extensions.convert.onnx_cpu.engines import GRAPH, INT8_GRAPH, Candidate, Wanted, attempt
from trireme_tools.build.exactness import RESULT
from trireme_tools.build.int8_cost import Quantized
from trireme_tools.build.measure import SURE, Answer, Input, Measure
from trireme_tools.build.right_answers import LABELS

#: Inputs that the quantization sees at most, and those by which its layers are ranked: each layer is taken
#: back once and judged by them.
CALIBRATED, RANKED = 100, 12
#: The layers that are taken back at most, and the seconds after which no more are.
MOST_LAYERS, LIMIT_S = 20, 600.0
#: One input of so many is held out, if there are at least two groups of them.
HELD_OUT = 3
#: Operators that are quantized.
CONVOLUTIONS = frozenset({"Convolution", "GroupConvolution", "ConvolutionBackpropData"})
HEAVY = CONVOLUTIONS | {"MatMul"}
#: Operators that move numbers: NNCF quantizes before them.
MOVERS = frozenset({"Concat", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "VariadicSplit"})

#: The tolerances that are tried, and how much more than the one that is needed here a start allows: another
#: processor rounds otherwise.
TOLERANCES, MARGIN = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.25), 2


def find_tolerance(version: Path, by_record: bool) -> float:
    """Return the tolerance with which the start's gate takes the graph in int8: twice of what it needs here.

    Raises :class:`CommandError` if it takes it with none.
    """
    for tolerance in TOLERANCES:
        wanted = Wanted(tolerance=tolerance, by_record=by_record)
        result = attempt(Candidate("openvino", "int8"), version, 1, wanted)
        if "fault" not in result:
            return MARGIN * tolerance
    raise CommandError(
        f"int8 answers the model's golden data otherwise than fp32 ({result['fault']}): use fp32 or bf16."
    )


def answer_of(compiled: Any, feed: Feed) -> Answer:
    """Return the outputs by name."""
    names = [value.node.friendly_name.removesuffix(RESULT) for value in compiled.outputs]
    return dict(zip(names, map(np.array, compiled(dict(feed)).values()), strict=True))


class AccuracyControl:
    """Tells NNCF how good a model in int8 is, by the inputs that can be judged.

    Args:
        inputs: All of a team's.
        measure: Judges their answers.

    Raises:
        CommandError: No input can be judged.
    """

    def __init__(self, inputs: Sequence[Input], measure: Measure) -> None:
        self._inputs, self._measure = inputs, measure
        #: The places of the inputs that the quantization may see, and of those that can be judged.
        self.seen = [place for place in range(len(inputs)) if not is_held_out(place, len(inputs))]
        self.judged = [place for place in self.seen if measure.judge(inputs[place], inputs[place].answer)]
        if not self.judged:
            raise CommandError(
                f"none of {len(self.seen)} inputs has an answer with a score over {SURE}, so nothing can be "
                "compared: name a folder of inputs that the model knows, or write the right labels into its "
                f"{LABELS}."
            )
        #: The measure of fp32.
        self.before = self.of([each.answer for each in inputs])
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.monotonic() - self._started

    def of(self, answers: Sequence[Answer]) -> float:
        """Return the measure of answers to all inputs, by those that can be judged."""
        return self._measure.of((self._inputs[place], answers[place]) for place in self.judged)

    def validate(self, compiled: Any, places: Iterable[int]) -> tuple[float, list[float]]:
        """Return a compiled model's measure by the inputs at these places, and each input's, for NNCF."""
        if self.seconds > LIMIT_S:
            return self.before, [self.before] * len(self.judged)  # good enough: NNCF ends with what it has
        rows = [(self._inputs[place], answer_of(compiled, self._inputs[place].feed)) for place in places]
        return self._measure.of(rows), [self._measure.of([row]) for row in rows]


def quantize(
    version: Path, inputs: Sequence[Input], measure: Measure, max_drop: float
) -> tuple[Quantized, list[Answer]]:
    """Write the graph in int8 beside the one in fp32; return what it costs, and its answers.

    Raises:
        CommandError: NNCF is not installed, or no choice of layers stays within ``max_drop``.
    """
    nncf = _library()
    import openvino

    core, control = openvino.Core(), AccuracyControl(inputs, measure)
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})  # else bf16, where the processor has it
    source = core.read_model(str((version / GRAPH).resolve()))
    free = {value.any_name: value.partial_shape for value in source.inputs}
    shapes = [{name: array.shape for name, array in each.feed.items()} for each in inputs]
    if all(shape == shapes[0] for shape in shapes):  # of known sizes it is twice as fast
        source.reshape(shapes[0])
    feeds = [dict(inputs[place].feed) for place in control.seen[:CALIBRATED]]
    model = _quantized(nncf, core, source, feeds, control, max_drop)
    compiled = core.compile_model(model, "CPU")
    answers = [answer_of(compiled, each.feed) for each in inputs]
    after = control.of(answers)
    is_quantized = any(operation.get_type_name() == "FakeQuantize" for operation in model.get_ops())
    if control.before - after > max_drop or not is_quantized:
        raise CommandError(
            f"int8 does not keep the {measure.name} within --max-drop {max_drop:.1%}: it is "
            f"{control.before:.1%} in fp32 and {after:.1%} with {len(_unquantized(model))} layers in fp32, "
            f"after {control.seconds:.0f} s. Serve this model in fp32 or bf16, or allow more."
        )
    model.reshape(free)
    openvino.save_model(model, str(version / INT8_GRAPH), compress_to_fp16=False)
    held_out = set(range(len(inputs))).difference(control.seen)
    unseen = [(inputs[place], answers[place]) for place in sorted(held_out)]
    unseen = [(each, answer) for each, answer in unseen if measure.judge(each, answer)]
    quantized = Quantized(
        tool=f"NNCF {nncf.__version__}",
        measure=measure.name,
        calibrated=len(feeds),
        controlled=len(control.judged),
        held_out=len(unseen),
        before=control.before,
        after=after,
        held_out_before=measure.of((each, each.answer) for each, _ in unseen) if unseen else None,
        held_out_after=measure.of(unseen) if unseen else None,
        max_drop=max_drop,
        unquantized=_unquantized(model),
    )
    return quantized, answers


def _quantized(
    nncf: Any, core: Any, source: Any, feeds: Sequence[Feed], control: AccuracyControl, max_drop: float
) -> Any:
    """Return the model in int8; if that loses more than ``max_drop``, with some layers in fp32."""
    operators = {operation.get_type_name() for operation in source.get_ops()}
    is_transformer = "Softmax" in operators and not operators & CONVOLUTIONS
    # Processors without VNNI add two products in 16 bits, which overflow where both sides use their whole
    # range, as pixels do. Weights of 7 bits in all layers cost YOLOv5s 3 % of its boxes.
    advanced = nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.FIRST_LAYER)
    options: dict[str, Any] = {
        # Smooths activations before the products, and leaves the attention's own in fp32.
        "model_type": nncf.ModelType.TRANSFORMER if is_transformer else None,
        "calibration_dataset": nncf.Dataset(feeds),
        "preset": nncf.QuantizationPreset.MIXED,
        "subset_size": len(feeds),
    }
    model = nncf.quantize(source, advanced_parameters=advanced, **options)
    measured, _ = control.validate(core.compile_model(model, "CPU"), control.judged)
    if control.before - measured <= max_drop:
        return model
    return nncf.quantize_with_accuracy_control(
        source,
        validation_dataset=nncf.Dataset(control.judged),
        validation_fn=control.validate,
        max_drop=max_drop,
        advanced_quantization_parameters=advanced,
        advanced_accuracy_restorer_parameters=nncf.AdvancedAccuracyRestorerParameters(
            max_num_iterations=MOST_LAYERS, ranking_subset_size=RANKED
        ),
        **options,
    )


def is_held_out(place: int, count: int) -> bool:
    """True if the input at this place of so many is held out."""
    return count >= 2 * HELD_OUT and place % HELD_OUT == HELD_OUT - 1


def _library() -> Any:
    """Import NNCF. Raises :class:`CommandError` if it is not installed."""
    os.environ.setdefault("NNCF_CI", "1")  # else it sends telemetry
    try:
        import nncf
        import pycocotools  # noqa: F401
    except ImportError:
        raise CommandError(
            "--precision int8 on cpu quantizes with NNCF, which is not installed: "
            "pip install 'trireme-tools[int8]'"
        ) from None
    nncf.set_log_level(logging.ERROR)
    return nncf


def _unquantized(model: Any) -> tuple[str, ...]:
    """Return the names of the layers that stayed in fp32."""
    return tuple(
        operation.get_friendly_name()
        for operation in model.get_ops()
        if operation.get_type_name() in HEAVY and not _is_quantized(operation)
    )


def _is_quantized(operation: Any) -> bool:
    """True if an operator's first input is quantized, there or before what only moves numbers."""
    for value in operation.input_values()[: None if operation.get_type_name() == "Concat" else 1]:
        source = value.get_node()
        kind = source.get_type_name()
        if kind != "FakeQuantize" and not (kind in MOVERS and _is_quantized(source)):
            return False
    return True
