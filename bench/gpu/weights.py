"""Small copies of graphs: their large weights as int8, or as the seed of random ones.

Random weights take as long as real ones, but their answers mean nothing. ``about.json`` says which weights a graph has.
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
#: Weights with more numbers than this are replaced. The others are packed unchanged.
MAX_KEPT_NUMBERS = 8192
#: What a bundle has of a model, apart from what a recipe makes beside its graph.
PACKED_FILES = ("graph.onnx", "weights.npz", "about.json", "golden.npz", "golden-answer.json")
#: Numbers of each output in the bundle. More would need as much space as the weights.
GOLDEN_NUMBERS = 20_000
DESCRIPTIONS = {
    "int8": "its own weights, rounded to 8 bits for each channel",
    "random": "random weights from a seed: its time is real, its answers mean nothing",
}


def pack(graph: Path, folder: Path, kind: Kind) -> None:
    """Write ``graph.onnx`` without its large weights, and the files from which they are restored."""
    folder.mkdir(parents=True, exist_ok=True)
    model = onnx.load(graph)
    arrays: dict[str, NDArray[Any]] = {}
    for weight in model.graph.initializer:
        if weight.data_type != onnx.TensorProto.FLOAT or math.prod(weight.dims) <= MAX_KEPT_NUMBERS:
            continue
        if kind == "int8":
            arrays[f"{weight.name}.int8"], arrays[f"{weight.name}.scale"] = _round_to_int8(
                onnx.numpy_helper.to_array(weight)
            )
        weight.ClearField("raw_data")
        weight.ClearField("float_data")
    onnx.save(model, folder / "graph.onnx")
    np.savez_compressed(folder / "weights.npz", **arrays)
    (folder / "about.json").write_text(json.dumps({"weights": kind}))


def restore(folder: Path, graph: Path) -> Kind:
    """Write the graph with all weights. Returns their kind."""
    kind: Kind = json.loads((folder / "about.json").read_text())["weights"]
    model = onnx.load(folder / "graph.onnx")
    with np.load(folder / "weights.npz") as arrays:
        for weight in model.graph.initializer:
            if weight.data_type != onnx.TensorProto.FLOAT or math.prod(weight.dims) <= MAX_KEPT_NUMBERS:
                continue
            shape = tuple(weight.dims)
            if kind == "int8":
                array = arrays[f"{weight.name}.int8"].astype(np.float32) * arrays[f"{weight.name}.scale"]
            else:
                array = random(weight.name, shape)
            weight.raw_data = np.ascontiguousarray(array, dtype=np.float32).tobytes()
    onnx.save(model, graph)
    return kind


def random(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Random weights that are the same with every NumPy, which promises only the generator's raw bits."""
    bits = np.random.PCG64(zlib.crc32(name.encode())).random_raw(math.prod(shape))
    uniform = (bits >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)
    fan_in = math.prod(shape[1:]) if len(shape) > 2 else shape[0]
    return (uniform * np.float32(1 / math.sqrt(fan_in))).reshape(shape)


def _round_to_int8(array: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Round to int8 symmetrically, with a scale for each output channel (the first dimension)."""
    axes = tuple(range(1, array.ndim))
    scale = np.maximum(np.abs(array).max(axis=axes, keepdims=True), 1e-12).astype(np.float32) / 127
    return np.round(array / scale).astype(np.int8), scale


def sample_evenly(array: Any) -> Any:
    """At most GOLDEN_NUMBERS of an array's numbers, evenly spread."""
    flat = array.reshape(-1)
    return np.ascontiguousarray(flat[:: max(1, len(flat) // GOLDEN_NUMBERS)][:GOLDEN_NUMBERS])
