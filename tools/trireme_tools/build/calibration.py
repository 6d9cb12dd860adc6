"""A team's arrays to calibrate with, and the quantization of a graph for TensorRT."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sm.errors import CommandError
from trireme_extensions.convert.graph_runner import Feed
from trireme_extensions.convert.onnx_graph import Graph


def quantize(graph: Path, feeds: Sequence[Feed], out: Path) -> None:
    """Quantize explicitly (Q/DQ nodes) for TensorRT: a scale for each channel, activations around zero."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Records(CalibrationDataReader):  # type: ignore[misc]
        left = iter(feeds)

        def get_next(self) -> Any:
            return next(self.left, None)

    with tempfile.TemporaryDirectory() as folder:
        whole, prepared = Path(folder) / "whole.onnx", Path(folder) / "prepared.onnx"
        # One file: of weights beside the graph it loses the place, and of a graph in memory the constants
        # that shapes depend on, such as those of YOLOv5's Resize.
        onnx.save(onnx.load(graph), whole)
        quant_pre_process(str(whole), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            onnx.load(prepared),
            str(out),
            Records(),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            extra_options={
                "ActivationSymmetric": True,
                "WeightSymmetric": True,
                # TensorRT's parser refuses a DequantizeLinear of an INT32 bias. Weights stay in float, with
                # a Q/DQ pair each.
                "QuantizeBias": False,
                "AddQDQPairToWeight": True,
                "DedicatedQDQPair": True,
            },
        )


def records(graph: Graph, folder: Path) -> Iterator[tuple[str, Feed]]:
    """Yield the batches in ``*.npz``, with an array for each input, or ``*.npy`` for one, by their files."""
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
        yield path.name, record
