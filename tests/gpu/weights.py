"""Graphs that travel light: their large weights as int8, or as the seed of random ones.

Random weights take the time that real ones take and answer nothing sensible; what has them says so.
"""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

Kind = Literal["int8", "random"]
#: Weights of more numbers than this are replaced; the others travel as they are.
SMALL = 8192
ABOUT = {
    "int8": "its own weights, rounded to 8 bits for each channel",
    "random": "random weights from a seed: its time is real, its answers mean nothing",
}


def pack(graph: Path, folder: Path, kind: Kind) -> None:
    """Write ``graph.onnx`` without its large weights, and what they are made again from."""
    folder.mkdir(parents=True, exist_ok=True)
    model = onnx.load(graph)
    kept: dict[str, NDArray[Any]] = {}
    for weight in model.graph.initializer:
        if weight.data_type != onnx.TensorProto.FLOAT or math.prod(weight.dims) <= SMALL:
            continue
        if kind == "int8":
            kept[f"{weight.name}.int8"], kept[f"{weight.name}.scale"] = _rounded(
                onnx.numpy_helper.to_array(weight)
            )
        weight.ClearField("raw_data")
        weight.ClearField("float_data")
    onnx.save(model, folder / "graph.onnx")
    np.savez_compressed(folder / "weights.npz", **kept)
    (folder / "about.json").write_text(json.dumps({"weights": kind}))


def restore(folder: Path, graph: Path) -> Kind:
    """Write the graph with all weights; return what they are."""
    kind: Kind = json.loads((folder / "about.json").read_text())["weights"]
    model = onnx.load(folder / "graph.onnx")
    with np.load(folder / "weights.npz") as kept:
        for weight in model.graph.initializer:
            if weight.data_type != onnx.TensorProto.FLOAT or math.prod(weight.dims) <= SMALL:
                continue
            shape = tuple(weight.dims)
            if kind == "int8":
                array = kept[f"{weight.name}.int8"].astype(np.float32) * kept[f"{weight.name}.scale"]
            else:
                array = random(weight.name, shape)
            weight.raw_data = np.ascontiguousarray(array, dtype=np.float32).tobytes()
    onnx.save(model, graph)
    return kind


def random(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The same numbers on every machine and NumPy: only the generator's raw bits are promised for ever."""
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(math.prod(shape))
    uniform = (raw >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)
    fan_in = math.prod(shape[1:]) if len(shape) > 2 else shape[0]
    return (uniform * np.float32(1 / math.sqrt(fan_in))).reshape(shape)


def _rounded(array: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Symmetric, with a scale for each output channel, the first dimension of a convolution's weights."""
    axes = tuple(range(1, array.ndim))
    scale = np.maximum(np.abs(array).max(axis=axes, keepdims=True), 1e-12).astype(np.float32) / 127
    return np.round(array / scale).astype(np.int8), scale
