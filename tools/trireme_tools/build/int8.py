"""Quantize a graph to int8 for the CPU target, within the drop that a team allows.

NNCF inserts the quantization and takes back the layers that cost most until the measure is good enough.
The measure is the team's own where its inputs have labels (accuracy, or mAP of boxes), else how often the
answers are those of fp32. Every third input is held out: neither the quantization nor its control sees it,
and the report has both figures.
"""

from __future__ import annotations

import csv
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.errors import CommandError
from sm.repository.manifest import Quantized
from trireme_extensions.convert.graph_runner import Feed
from trireme_extensions.convert.onnx_cpu.engines import (
    CONFIDENCE,
    GRAPH,
    INT8_GRAPH,
    RESULT,
    Candidate,
    Golden,
    Wanted,
    attempt,
    overlap,
)
from trireme_tools.build import box_labels

#: Inputs that the quantization sees at most, and those by which its layers are ranked: each layer is taken
#: back once and judged by them.
CALIBRATED, RANKED = 100, 12
#: The layers that are taken back at most, and the seconds after which no more are.
MOST_LAYERS, LIMIT_S = 20, 600.0
#: One input of so many is held out, if there are at least two groups of them.
HELD_OUT = 3
#: The score from which an answer counts: what is said with less changes with every rounding.
SURE = 0.5
#: The overlap (intersection over union) of equal boxes.
SAME_BOX = 0.9
#: The threshold of boxes that are compared with right ones: precision is averaged over all scores.
LEAST_SCORE = 0.001
#: The file with the right label of each input, as lines ``file,label``; a label is its place in the output.
LABELS = "labels.csv"
#: COCO's file beside the pictures, as its documentation and Roboflow name it.
COCO = ("annotations.json", "_annotations.coco.json")
#: YOLO's folder with a ``NAME.txt`` for ``NAME.jpg``: in the pictures' folder, or in place of ``images``.
YOLO, IMAGES = "labels", "images"
#: Operators that are quantized.
CONVOLUTIONS = frozenset({"Convolution", "GroupConvolution", "ConvolutionBackpropData"})
HEAVY = CONVOLUTIONS | {"MatMul"}
#: Operators that move numbers: NNCF quantizes before them.
MOVERS = frozenset({"Concat", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "VariadicSplit"})

#: The tolerances that are tried, and how much more than the one that is needed here a start allows: another
#: processor rounds otherwise.
TOLERANCES, MARGIN = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.25), 2

Answer = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Input:
    """One of a team's inputs, with the answer of fp32."""

    feed: Feed
    answer: Answer
    #: The file that it was made of; empty if that is not known.
    file: str = ""
    #: The right label; None if it is not known.
    label: int | None = None
    #: The right boxes: x1, y1, x2, y2, class, whether it is a crowd; None if they are not known.
    boxes: NDArray[Any] | None = None


@dataclass(frozen=True)
class Measure:
    """How good answers are. ``kinds`` and ``scores`` say what the outputs are, as golden data do."""

    kinds: Mapping[str, str]
    scores: str
    has_labels: bool

    @property
    def name(self) -> str:
        """What it measures, for a report."""
        if self.has_labels:
            return "mAP@0.5:0.95" if self.is_precision else "accuracy"
        return "agreement with fp32" if self.kinds else "cosine similarity with fp32"

    @property
    def is_precision(self) -> bool:
        """True if boxes are compared with right ones."""
        return self.has_labels and "boxes" in self.kinds.values()

    def precision(self, inputs: Iterable[tuple[Input, Answer]]) -> tuple[float, float]:
        """Return mAP@0.5:0.95 and mAP@0.5 of answers."""
        output = next(name for name, kind in self.kinds.items() if kind == "boxes")
        pairs = ((each.boxes, answer[output]) for each, answer in inputs if each.boxes is not None)
        return box_labels.mean_average_precision(pairs)

    def judge(self, each: Input, answer: Answer) -> list[float]:
        """Return a number from 0 (wrong) to 1 for each thing that an answer says; none if it is unsure."""
        if self.is_precision:
            return [self.precision([(each, answer)])[0]]
        if self.has_labels:
            scores = next(answer[name] for name, kind in self.kinds.items() if kind == "labels")
            return [float(int(scores.reshape(-1).argmax()) == each.label)]
        judged: list[float] = []
        for name, kind in self.kinds.items():
            if kind == "labels":
                judged += _same_labels(each.answer[name], answer[name])
            elif kind == "boxes":
                judged += _same_boxes(each.answer[name], answer[name])
            elif kind == "words":
                judged += _same_words(each.answer, answer, name, self.scores)
        if not self.kinds:
            judged += [_cosine(each.answer[name], answer[name]) for name in answer]
        return judged

    def describe(self, answer: Answer) -> str:
        """Return an answer in a few words, for a picture."""
        said = []
        for name, kind in self.kinds.items():
            if kind == "labels":
                row = answer[name].reshape(-1, answer[name].shape[-1])[0]
                said.append(f"label {row.argmax()} ({probabilities(row).max():.2f})")
            elif kind == "boxes":
                boxes = answer[name].reshape(-1, answer[name].shape[-1])
                said += [f"{box[5]:.0f} ({box[4]:.2f})" for box in boxes[boxes[:, 4] > SURE]]
            elif kind == "words":
                said.append(f"word {answer[name].reshape(-1)[0]}")
        return ", ".join(dict.fromkeys(said)) or "nothing"

    def of(self, inputs: Iterable[tuple[Input, Answer]]) -> float:
        """Return the mean over inputs, or the mAP; 1 if nothing can be judged."""
        if self.is_precision:
            return self.precision(inputs)[0]
        judged = [one for each, answer in inputs for one in self.judge(each, answer)]
        return float(np.mean(judged)) if judged else 1.0


def _same_labels(expected: NDArray[Any], actual: NDArray[Any]) -> list[float]:
    rows = zip(*(array.reshape(-1, array.shape[-1]) for array in (expected, actual)), strict=True)
    return [float(one.argmax() == other.argmax()) for one, other in rows if probabilities(one).max() > SURE]


def probabilities(scores: NDArray[Any]) -> NDArray[Any]:
    """Return scores of labels as probabilities: as they are if they are some already, else by softmax."""
    numbers = scores.astype(np.float64)
    if numbers.min(initial=0) >= 0 and abs(numbers.sum() - 1) < 1e-2:
        return numbers
    powers = np.exp(numbers - numbers.max())
    shares: NDArray[Any] = powers / powers.sum()
    return shares


def _same_boxes(expected: NDArray[Any], actual: NDArray[Any]) -> list[float]:
    """Look for each sure box (x1, y1, x2, y2, score, class) of either side among all of the other."""
    rows = [array.reshape(-1, array.shape[-1]) for array in (expected, actual)]
    found = [array[array[:, 4] > 0] for array in rows]
    return [
        float(any(box[5] == other[5] and overlap(box, other) >= SAME_BOX for other in others))
        for boxes, others in (found, reversed(found))
        for box in boxes
        if box[4] > SURE
    ]


def _same_words(expected: Answer, actual: Answer, ids: str, scores: str) -> list[float]:
    sure = np.exp(expected[scores][..., 0]).ravel() > SURE
    same = expected[ids][..., 0].ravel() == actual[ids][..., 0].ravel()
    return [float(each) for each in same[sure]]


def _cosine(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    one, other = (np.nan_to_num(array.astype(np.float64)).ravel() for array in (expected, actual))
    length = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / length if length else float(np.array_equal(one, other))


def read_inputs(folder: Path, named: Sequence[tuple[str, Feed]], golden: Golden, names: Path) -> list[Input]:
    """Return a team's inputs with the answers of fp32 and, where the folder has them, the right labels.

    ``names``: the file with the names of the model's classes.

    Raises:
        CommandError: The labels cannot be read, an input has none, or they do not fit the answers.
    """
    labels = read_labels(folder)
    if labels:
        _check_labels(folder / LABELS, [name for name, _ in named], labels, golden)
    if labels and (missing := sorted({name for name, _ in named} - labels.keys())):
        raise CommandError(f"{folder / LABELS} has no label for {', '.join(missing[:3])}.")
    boxes: Sequence[NDArray[Any] | None] = [None] * len(named)
    if "boxes" in golden.kinds.values() and (place := find_boxes(folder)):
        boxes = box_labels.read(place, folder, named, names)
    return [
        Input(feed, answer, name, labels.get(name), right)
        for (name, feed), answer, right in zip(named, golden.answers, boxes, strict=True)
    ]


def _check_labels(path: Path, names: Sequence[str], labels: Mapping[str, int], golden: Golden) -> None:
    """Raise :class:`CommandError` unless each file has one record, and its label a place in the scores."""
    output = next((name for name, kind in golden.kinds.items() if kind == "labels"), None)
    if output is None:
        raise CommandError(
            f"{path} has labels, and the model's answers are not scores of labels: without the file int8 is "
            "compared with fp32."
        )
    for name, answer in zip(names, golden.answers, strict=True):
        if names.count(name) > 1 or len(answer[output]) != 1:
            raise CommandError(f"{path}: {name} has several records, and one label: give each a file.")
        if labels.get(name, 0) >= (count := answer[output].shape[-1]):
            raise CommandError(
                f"{path}: {name} has the label {labels[name]}; {output} has {count}, from 0 on."
            )


def with_low_threshold(folder: Path, feed: Feed) -> Feed:
    """Return an input whose graph answers boxes from half the score on, so that one just below counts too.

    All of them, if ``folder`` has the right ones.
    """
    if CONFIDENCE not in feed:
        return feed
    factor = 0 if find_boxes(folder) else 0.5
    return {**feed, CONFIDENCE: np.maximum(feed[CONFIDENCE] * np.float32(factor), np.float32(LEAST_SCORE))}


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


def find_boxes(folder: Path) -> Path | None:
    """Return the file or folder with the right boxes of the pictures in ``folder``; None if there is none."""
    places = [*(folder / name for name in COCO), folder / YOLO]
    before, images, behind = f"{folder.absolute()}/".rpartition(f"/{IMAGES}/")
    if images:  # Ultralytics' rule
        places.append(Path(before, YOLO, behind))
    return next((path for path in places if path.exists()), None)


def read_labels(folder: Path) -> dict[str, int]:
    """Read :data:`LABELS`; empty without it. Raises :class:`CommandError` with the wrong line."""
    path = folder / LABELS
    if not path.is_file():
        return {}
    labels = {}
    for number, row in enumerate(csv.reader(path.read_text("utf-8-sig").splitlines()), 1):
        if len(row) != 2 or not row[1].strip().isdigit() or not (folder / row[0]).is_file():
            raise CommandError(
                f"{path}, line {number}: a file of the folder and the number of its label are expected."
            )
        labels[row[0]] = int(row[1])
    return labels


def answer_of(compiled: Any, feed: Feed) -> Answer:
    """Return the outputs by name."""
    names = [value.node.friendly_name.removesuffix(RESULT) for value in compiled.outputs]
    return dict(zip(names, map(np.array, compiled(dict(feed)).values()), strict=True))


def quantize(
    version: Path, inputs: Sequence[Input], measure: Measure, max_drop: float
) -> tuple[Quantized, list[Answer]]:
    """Write the graph in int8 beside the one in fp32; return what it costs, and its answers.

    Raises:
        CommandError: NNCF is not installed, or no choice of layers stays within ``max_drop``.
    """
    nncf = _library()
    import openvino

    core = openvino.Core()
    core.set_property(
        "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )  # by itself it takes bf16 where there is any
    held_out = [place for place in range(len(inputs)) if is_held_out(place, len(inputs))]
    seen = [place for place in range(len(inputs)) if place not in held_out]
    judged = [place for place in seen if measure.judge(inputs[place], inputs[place].answer)]
    if not judged:
        raise CommandError(
            f"none of {len(seen)} inputs has an answer with a score over {SURE}, so nothing can be compared: "
            f"name a folder of inputs that the model knows, or write the right labels into its {LABELS}."
        )

    started = time.monotonic()

    def validate(compiled: Any, places: Iterable[int]) -> tuple[float, list[float]]:
        if time.monotonic() - started > LIMIT_S:
            return before, [before] * len(judged)  # good enough, so that NNCF ends with what it has
        rows = [(inputs[place], answer_of(compiled, inputs[place].feed)) for place in places]
        return measure.of(rows), [measure.of([row]) for row in rows]

    source = core.read_model(str((version / GRAPH).resolve()))
    free = {value.any_name: value.partial_shape for value in source.inputs}
    shapes = [{name: array.shape for name, array in each.feed.items()} for each in inputs]
    if all(shape == shapes[0] for shape in shapes):  # of known sizes it is twice as fast
        source.reshape(shapes[0])
    before = measure.of([(inputs[place], inputs[place].answer) for place in judged])
    calibrated = seen[:CALIBRATED]
    operators = {operation.get_type_name() for operation in source.get_ops()}
    is_transformer = "Softmax" in operators and not operators & CONVOLUTIONS
    options: dict[str, Any] = {
        # Smooths activations before the products, and leaves the attention's own in fp32.
        "model_type": nncf.ModelType.TRANSFORMER if is_transformer else None,
        "calibration_dataset": nncf.Dataset([dict(inputs[place].feed) for place in calibrated]),
        "preset": nncf.QuantizationPreset.MIXED,
        "subset_size": len(calibrated),
        # Processors without VNNI add two products in 16 bits, which overflow where both sides use their whole
        # range, as pixels do. Weights of 7 bits in all layers cost YOLOv5s 3 % of its boxes.
        "advanced_parameters": nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.FIRST_LAYER),
    }
    model = nncf.quantize(source, **options)
    if before - validate(core.compile_model(model, "CPU"), judged)[0] > max_drop:
        options["advanced_quantization_parameters"] = options.pop("advanced_parameters")
        model = nncf.quantize_with_accuracy_control(
            source,
            validation_dataset=nncf.Dataset(judged),
            validation_fn=validate,
            max_drop=max_drop,
            advanced_accuracy_restorer_parameters=nncf.AdvancedAccuracyRestorerParameters(
                max_num_iterations=MOST_LAYERS, ranking_subset_size=RANKED
            ),
            **options,
        )
    compiled = core.compile_model(model, "CPU")
    answers = [answer_of(compiled, each.feed) for each in inputs]
    after = measure.of([(inputs[place], answers[place]) for place in judged])
    is_quantized = any(operation.get_type_name() == "FakeQuantize" for operation in model.get_ops())
    if before - after > max_drop or not is_quantized:
        raise CommandError(
            f"int8 does not keep the {measure.name} within --max-drop {max_drop:.1%}: it is "
            f"{before:.1%} in fp32 and {after:.1%} with {len(_unquantized(model))} layers in fp32, after "
            f"{time.monotonic() - started:.0f} s. Serve this model in fp32 or bf16, or allow more."
        )
    model.reshape(free)
    openvino.save_model(model, str(version / INT8_GRAPH), compress_to_fp16=False)
    unseen = [(inputs[place], answers[place]) for place in held_out]
    unseen = [(each, answer) for each, answer in unseen if measure.judge(each, answer)]
    quantized = Quantized(
        tool=f"NNCF {nncf.__version__}",
        measure=measure.name,
        calibrated=len(calibrated),
        controlled=len(judged),
        held_out=len(unseen),
        before=before,
        after=after,
        held_out_before=measure.of((each, each.answer) for each, _ in unseen) if unseen else None,
        held_out_after=measure.of(unseen) if unseen else None,
        max_drop=max_drop,
        unquantized=_unquantized(model),
    )
    return quantized, answers


def describe(
    quantized: Quantized, inputs: Sequence[Input], answers: Sequence[Answer], measure: Measure, picture: str
) -> list[str]:
    """Return the part of the report about int8. ``picture``: its file; empty for none."""
    rows = [("seen by the quantization", quantized.controlled, quantized.before, quantized.after)]
    if quantized.held_out_before is not None and quantized.held_out_after is not None:
        rows.append(("held out", quantized.held_out, quantized.held_out_before, quantized.held_out_after))
    if measure.is_precision:
        sides = [each.answer for each in inputs], answers
        half = [measure.precision(zip(inputs, side, strict=True))[1] for side in sides]
        rows.append(("all, mAP@0.5", len(inputs), half[0], half[1]))
    kept = ", ".join(f"`{name}`" for name in quantized.unquantized) or "none"
    return [
        f"**int8**, by {quantized.tool}, calibrated with {quantized.calibrated} inputs, at most "
        f"{quantized.max_drop:.1%} lost. Layers that stay in fp32: {kept}.",
        "",
        f"| inputs | number | {quantized.measure}, fp32 | int8 |",
        "|---|---|---|---|",
        *(f"| {name} | {count} | {before:.1%} | {after:.1%} |" for name, count, before, after in rows),
        "",
        *([f"![the inputs whose answers differ most]({picture})", ""] if picture else []),
    ]


#: The picture beside the report, the inputs in it, and the pixels of each.
DIFFERENCES, SHOWN, TILE = "differences.jpg", 6, 240


def draw_differences(
    folder: Path, staged: Path, inputs: Sequence[Input], answers: Sequence[Answer], measure: Measure
) -> str:
    """Draw the pictures whose answers differ most, with the answer of either side; return the file's name.

    Empty if the inputs are no pictures, or nothing differs.
    """
    from PIL import Image, ImageDraw

    judged = [
        (measure.of([(each, answer)]) - measure.of([(each, each.answer)]), each, answer)
        for each, answer in zip(inputs, answers, strict=True)
    ]
    worst = sorted((row for row in judged if row[0] < 0 and row[1].file), key=lambda row: row[0])[:SHOWN]
    tiles = []
    for _, each, answer in worst:
        try:
            with Image.open(folder / each.file) as opened:
                picture = opened.convert("RGB")
        except OSError:
            continue
        picture.thumbnail((TILE, TILE))
        tile = Image.new("RGB", (TILE, TILE + 40), "white")
        tile.paste(picture)
        lines = f"{each.file}\nfp32: {measure.describe(each.answer)}\nint8: {measure.describe(answer)}"
        ImageDraw.Draw(tile).text((2, TILE + 2), lines, "black")
        tiles.append(tile)
    if not tiles:
        return ""
    sheet = Image.new("RGB", (TILE * len(tiles), TILE + 40), "white")
    for place, tile in enumerate(tiles):
        sheet.paste(tile, (TILE * place, 0))
    sheet.save(staged / DIFFERENCES)
    return DIFFERENCES


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
