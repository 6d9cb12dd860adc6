"""The request of ``sm build-model``, and the sizes that follow from it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sm.errors import CommandError
from sm.repository.manifest import Change, Compatibility, Precision, Profile, Target
from trireme_extensions.convert.build_arguments import Range
from trireme_extensions.convert.onnx_cpu.engines import Wanted
from trireme_extensions.convert.onnx_graph import Graph, Value

#: The largest batch if neither the request nor a hand-written configuration sets one.
MAX_BATCH = 8


#: The file with a model's own options of sm build-model, for every target. It is beside config.pbtxt.
OPTIONS = "build.options"
#: How a source names a model of torchvision.
TORCHVISION_PREFIX = "torchvision:"


@dataclass(frozen=True)
class BuildRequest:
    """One model for one target."""

    model: str
    target: Target
    out: Path
    #: An ONNX file, or a name for PyTorch; None: the model's recipe.
    source: Path | str | None = None
    batch: Range | None = None
    precision: Precision = "fp32"
    #: What the tools change in the graph.
    changes: tuple[Change, ...] = ()
    #: TensorRT only: workspace in MiB, timing cache, calibration inputs, and whether types come from the
    #: graph.
    workspace: int | None = None
    timing_cache: Path | None = None
    calibration: Path | None = None
    #: How much int8 may lower the measure; ``cpu`` only.
    max_drop: float = 0.01
    strongly_typed: bool = True
    version_compatible: bool = False
    hardware_compatibility: Compatibility = "none"
    #: Shapes by input, such as ``((1, 128), (16, 128), (128, 128))``.
    shapes: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    #: False: do not compare the model with its source.
    compare: bool = True
    #: True if the manifest gets the order of the engines by their times here; ``cpu`` only.
    measured: bool = False
    #: Which engines may run the model; ``cpu`` only.
    wanted: Wanted = field(default_factory=Wanted)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.model) or self.model.startswith("."):
            raise CommandError(
                f"{self.model!r} is not a name for a model: use letters, digits, _, - and dots, no dot first."
            )


def is_torch(source: str) -> bool:
    """True if a source is PyTorch's: a torchvision name, a hub id or a folder."""
    return source.startswith(TORCHVISION_PREFIX) or (
        not source.endswith(".onnx") and not Path(source).is_file()
    )


def options(path: Path) -> list[str]:
    """Return the words in a file of options; none if there is no file."""
    return shlex.split(path.read_text("utf-8-sig"), comments=True) if path.is_file() else []


def ranges(request: BuildRequest, graph: Graph, largest: int) -> dict[str, Range]:
    """Return the ranges of the free sizes that the request sets, by name.

    Inputs that share a free size share its name, so one of them is enough.
    """
    if request.batch and not graph.batched:
        raise CommandError(f"{graph.path} takes no batches (its first sizes are fixed): leave out --batch.")
    by_name: dict[str, Range] = {}
    if graph.batched:
        by_name |= {str(value.sizes[0]): request.batch or (1, largest, largest) for value in graph.inputs}
    inputs = {value.name: value for value in graph.inputs}
    for name, bounds in request.shapes.items():
        if name not in inputs:
            raise CommandError(f"--shapes names {name!r}; the inputs are {', '.join(inputs)}.")
        by_name |= _ranges_of_input(inputs[name], bounds)
    return by_name


def profiles(graph: Graph, by_name: Mapping[str, Range]) -> tuple[Profile, ...]:
    """Return the three shapes of each input with a free size.

    Raises :class:`CommandError` with the name of a size without a range.
    """
    for value in graph.inputs:
        for size in value.sizes:
            if isinstance(size, str) and size not in by_name:
                example = ",".join("x".join(_example(value, size, index)) for index in range(3))
                raise CommandError(
                    f"{value.name} has the free size {size!r}, for which a plan needs a range: "
                    f"--shapes {value.name}={example}"
                )
    return tuple(
        Profile(
            input=value.name,
            minimum=_shape(value, by_name, 0),
            optimum=_shape(value, by_name, 1),
            maximum=_shape(value, by_name, 2),
        )
        for value in graph.inputs
        if -1 in value.shape
    )


def fixed(graph: Graph, by_name: Mapping[str, Range]) -> list[str]:
    """Describe the sizes that are free in the graph and fixed in the plan, except the batch."""
    batches = {value.sizes[0] for value in graph.inputs} if graph.batched else set()
    return [
        f"a {name} of {most} alone"
        for name, (least, _, most) in by_name.items()
        if least == most and name not in batches
    ]


def _ranges_of_input(value: Value, shapes: tuple[tuple[int, ...], ...]) -> dict[str, Range]:
    if len(shapes[0]) != len(value.sizes):
        raise CommandError(f"--shapes gives {value.name} {len(shapes[0])} sizes; it has {len(value.sizes)}.")
    by_name: dict[str, Range] = {}
    for size, bounds in zip(value.sizes, zip(*shapes, strict=True), strict=True):
        if isinstance(size, str):
            by_name[size] = bounds
        elif set(bounds) != {size}:
            raise CommandError(f"--shapes gives {value.name} a size of {bounds[0]} where it has {size}.")
    return by_name


def _shape(value: Value, by_name: Mapping[str, Range], index: int) -> tuple[int, ...]:
    return tuple(by_name[size][index] if isinstance(size, str) else size for size in value.sizes)


def _example(value: Value, free: str, index: int) -> list[str]:
    batches = (1, 16, 128)
    return [
        str(size if isinstance(size, int) else 128 if size == free and axis else batches[index])
        for axis, size in enumerate(value.sizes)
    ]
