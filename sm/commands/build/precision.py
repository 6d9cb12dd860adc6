"""Convert a graph to another precision, with the types in the graph itself, as strongly typed TensorRT needs.

TensorRT 11 requires it, and TensorRT 10 accepts it with ``--stronglyTyped``. ONNX Runtime converts and
quantizes, so the effect on the answers can be measured here without a GPU.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sm.commands.build.onnx_graph import Graph
from sm.errors import CommandError
from sm.repository.manifest import Precision


def convert_precision(graph: Graph, precision: Precision, calibration: Path | None, out: Path) -> Graph:
    """Convert a graph to ``out`` and return it, or the graph itself if nothing changes.

    Inputs and outputs keep their types.
    """
    if (calibration is None) == (precision == "int8"):
        raise CommandError("--precision int8 and --calibration FOLDER go together: name both or neither.")
    if precision == "fp16":
        _half(graph.path, out)
    elif precision == "int8" and calibration:
        _quantize(graph, calibration, out)
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


def _quantize(graph: Graph, calibration: Path, out: Path) -> None:
    """Quantize explicitly: symmetric int8 with a scale for each channel, as TensorRT needs."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    records = list(_records(graph, calibration))

    class Records(CalibrationDataReader):  # type: ignore[misc]
        left = iter(records)

        def get_next(self) -> Any:
            return next(self.left, None)

    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(graph.path), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(out),
            Records(),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            extra_options={"ActivationSymmetric": True, "WeightSymmetric": True},
        )


def _records(graph: Graph, folder: Path) -> Iterator[dict[str, Any]]:
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
