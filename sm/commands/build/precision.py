"""Convert a graph to another precision, with the types in the graph itself, as strongly typed TensorRT needs.

TensorRT 11 requires it, and TensorRT 10 accepts it with ``--stronglyTyped``. ONNX Runtime converts and
quantizes, so the effect on the answers can be measured here without a GPU.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sm.commands.build.onnx_graph import Graph
from sm.commands.build.random_inputs import Feed
from sm.errors import CommandError
from sm.repository.manifest import Precision

#: Operators that are worth quantizing on a processor; and how many make leaving out two worthwhile.
HEAVY, MANY = ("Conv", "Gemm", "MatMul"), 5


def convert_precision(graph: Graph, precision: Precision, calibration: Path | None, out: Path) -> Graph:
    """Convert a graph to ``out`` and return it, or the graph itself if nothing changes.

    Inputs and outputs keep their types.
    """
    if (calibration is None) == (precision == "int8"):
        raise CommandError("--precision int8 and --calibration FOLDER need each other: give both or neither.")
    if precision == "fp16":
        _half(graph.path, out)
    elif precision == "int8" and calibration:
        quantize(graph.path, list(records(graph, calibration)), out, symmetric=True)
    elif precision == "bf16" and not _has_bfloat16(graph.path):
        raise CommandError(
            f"{graph.path} has no bfloat16 in it, and strongly typed TensorRT takes types from the graph: "
            "export it from PyTorch in bfloat16, or with TensorRT 10 build with --no-strongly-typed."
        )
    return Graph.read(out) if out.exists() else graph


def _half(path: Path, out: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with warnings.catch_warnings():
        # It warns of each weight below the range of 16 bits; the comparison shows whether that matters.
        warnings.simplefilter("ignore")
        onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), out)


def _has_bfloat16(path: Path) -> bool:
    graph = onnx.load(path, load_external_data=False).graph
    return any(weight.data_type == onnx.TensorProto.BFLOAT16 for weight in graph.initializer)


def quantize(graph: Path, feeds: Sequence[Feed], out: Path, *, symmetric: bool) -> None:
    """Quantize explicitly (Q/DQ nodes), with a scale for each channel of the weights.

    ``symmetric``: everything, with activations around zero, as TensorRT needs. Else, for processors, the
    multiplications but the first and the last, which lose most, with activations of any range.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Records(CalibrationDataReader):  # type: ignore[misc]
        left = iter(feeds)

        def get_next(self) -> Any:
            return next(self.left, None)

    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(onnx.load(graph), str(prepared), skip_symbolic_shape=True)
        model = onnx.load(prepared)
        for place, node in enumerate(model.graph.node):
            node.name = f"{node.op_type}_{place}"  # what is left out is named
        heavy = [node.name for node in model.graph.node if node.op_type in HEAVY]
        quantize_static(
            model,
            str(out),
            Records(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=None if symmetric else [*HEAVY],
            nodes_to_exclude=None if symmetric or len(heavy) < MANY else [heavy[0], heavy[-1]],
            activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            extra_options={
                "ActivationSymmetric": symmetric,
                "WeightSymmetric": True,
                "CalibMovingAverage": not symmetric,
            },
        )


def records(graph: Graph, folder: Path) -> Iterator[Feed]:
    """Yield the batches in ``*.npz``, with an array for each input, or ``*.npy`` for a single input."""
    names = [value.name for value in graph.inputs]
    files = sorted(path for path in folder.glob("*.np[yz]") if path.is_file())
    if not files:
        raise CommandError(
            f"{folder} has no *.npz or *.npy to calibrate with: put some hundred typical inputs there, "
            f"each file a batch of {', '.join(names)}."
        )
    for path in files:
        loaded = np.load(path, allow_pickle=False)
        record = {names[0]: loaded} if path.suffix == ".npy" else dict(loaded)
        if set(record) != set(names):
            raise CommandError(f"{path} has {', '.join(record)}; the model takes {', '.join(names)}.")
        yield record
