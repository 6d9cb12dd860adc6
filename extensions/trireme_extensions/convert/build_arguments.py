"""The arguments of ``sm build-model``. Importing this module does not import ONNX."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sm.repository.manifest import Change  # imports pydantic

#: Smallest, optimal and largest size.
Range = tuple[int, int, int]
#: The value of ``--engine`` that measures.
FASTEST = "fastest"
#: Changes of a graph that the tools can make.
CHANGES: Mapping[Change, str] = {
    "uint8": "the input is a picture's bytes; what preprocess.json does with them goes into the graph",
    "nms": "YOLOv5: boxes are suppressed in the graph, which gives objects, not rows",
    "masks": "a masked language model gives the best words of its masks alone (not on tensorrt)",
}


#: The purpose of each target.
TARGETS = {
    "cpu": "ONNX Runtime in Triton's Python backend, on any machine",
    "onnxruntime": "Triton's own ONNX Runtime backend, which NVIDIA's image has, on CPU or GPU",
    "tensorrt": "a plan for this machine's kind of GPU, the fastest there",
}


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "name", metavar="NAME", help="the model's name, a folder of model/ if it has a recipe"
    )
    command.add_argument(
        "--target",
        choices=TARGETS,
        default="cpu",
        help="; ".join(f"{name}: {use}" for name, use in TARGETS.items()) + " (default: cpu)",
    )
    command.add_argument("--batch", type=batch, metavar="MIN:OPT:MAX", help="batch sizes (default: 1:8:8)")
    command.add_argument(
        "--shapes",
        type=shapes,
        action="append",
        default=[],
        metavar="INPUT=MIN,OPT,MAX",
        help="the shapes of an input, such as input_ids=1x128,16x128,128x128; repeat it for each input "
        "(default: sizes at which the graph answers; tensorrt needs those of each free size)",
    )
    command.add_argument(
        "--precision",
        choices=("auto", "fp32", "fp16", "bf16", "int8"),
        help="the numbers to compute with; fp32 is exact (default: auto on cpu, where each start chooses; "
        "fp32 on other targets)",
    )
    command.add_argument(
        "--engine",
        choices=("auto", FASTEST, "onnxruntime", "openvino"),
        default="auto",
        help="what runs the model on cpu (default: auto, by the processor's instructions; fastest: measured "
        "now, for every box that serves the model)",
    )
    command.add_argument(
        "--tolerance",
        type=float,
        default=0.01,
        metavar="FRACTION",
        help="how far an engine's scores on cpu may be from those of fp32 (default: 0.01)",
    )
    for change, help_text in CHANGES.items():
        command.add_argument(
            f"--{change}", action=argparse.BooleanOptionalAction, default=False, help=help_text
        )
    command.add_argument(
        "--calibration",
        type=Path,
        metavar="FOLDER",
        help="a folder of typical inputs, which int8 needs; on cpu also of pictures or texts.txt, for the "
        "report on accuracy",
    )
    command.add_argument(
        "--max-drop",
        type=share,
        default=0.01,
        metavar="SHARE",
        help="how much int8 on cpu may lower the accuracy by labels.csv, or else the agreement with fp32 "
        "(default: 1%%)",
    )
    command.add_argument(
        "--workspace",
        type=int,
        metavar="MIB",
        help="memory that TensorRT may use for the build (default: all)",
    )
    command.add_argument(
        "--timing-cache",
        type=Path,
        metavar="FILE",
        help="a file of measurements to read and extend (default: none)",
    )
    command.add_argument(
        "--strongly-typed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="take the types from the graph, as TensorRT 11 always does; else TensorRT 10 chooses them",
    )
    command.add_argument(
        "--version-compatible",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="a plan that later versions of TensorRT run too; it brings a runtime that Triton executes, so "
        "serve only plans that you trust",
    )
    command.add_argument(
        "--hardware-compatibility",
        choices=("none", "ampere+", "sameComputeCapability"),
        default="none",
        help="a plan for other GPUs too: all from Ampere on, or all of the same capability; it may be "
        "slower (default: none)",
    )
    command.add_argument(
        "--compare",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare the model with its source on random inputs; without it the manifest has a warning",
    )
    command.add_argument(
        "--trial-seconds",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="how long one run of the graph on trial inputs may take (default: 120)",
    )
    command.add_argument(
        "--trial-memory",
        type=int,
        default=4096,
        metavar="MIB",
        help="memory that one such run may take, beside four times the graph's files (default: 4096)",
    )
    command.add_argument(
        "--source",
        metavar="FILE|PACKAGE|HUB-ID",
        help="an ONNX file, torchvision:NAME, or a transformers hub id or folder (default: its recipe)",
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="REPO",
        help="the model repository to build into (default: built/TARGET in the cache)",
    )


def batch(text: str) -> Range:
    """Parse ``MIN:OPT:MAX``. Raises ValueError."""
    smallest, best, largest = (int(part) for part in text.split(":"))
    if not 1 <= smallest <= best <= largest:
        raise ValueError(text)
    return smallest, best, largest


def share(text: str) -> float:
    """Parse ``1%`` or ``0.01``. Raises ValueError."""
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= value < 1:
        raise ValueError(text)
    return value


def shapes(text: str) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """Parse ``input=1x128,16x128,128x128``. Raises ValueError."""
    name, _, sizes = text.partition("=")
    bounds = tuple(tuple(int(size) for size in shape.split("x")) for shape in sizes.split(","))
    if not name or len(bounds) != 3 or any(not 1 <= a <= b <= c for a, b, c in zip(*bounds, strict=True)):
        raise ValueError(text)
    return name, bounds
