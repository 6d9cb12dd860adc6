"""The request of ``sm build-model``, and the sizes that follow from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sm.errors import StartError
from sm.repository.manifest import Precision, Profile, Target
from sm.tools.build.changes import Changes
from sm.tools.build.onnx_graph import Graph, Value

#: Smallest, optimal and largest size.
Range = tuple[int, int, int]
#: The largest batch if neither the request nor a hand-written configuration sets one.
MAX_BATCH = 8


@dataclass(frozen=True)
class BuildRequest:
    """One model for one target. ``source``: an ONNX file or a name for PyTorch; None for the model's
    recipe.
    """

    model: str
    target: Target
    out: Path
    source: Path | str | None = None
    batch: Range | None = None
    precision: Precision = "fp32"
    changes: Changes = field(default_factory=Changes)
    #: TensorRT only: workspace in MiB, timing cache, calibration inputs, and whether types come from the
    #: graph.
    workspace: int | None = None
    timing_cache: Path | None = None
    calibration: Path | None = None
    strongly_typed: bool = True
    #: Shapes by input, such as ``((1, 128), (16, 128), (128, 128))``.
    shapes: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    #: False: do not compare the model with its source.
    compare: bool = True

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.model) or self.model.startswith("."):
            raise StartError(f"{self.model!r} is no name for a model: letters, digits, _, - and . make one.")


def batch(text: str) -> Range:
    """Parse ``MIN:OPT:MAX``. Raises ValueError."""
    smallest, best, largest = (int(part) for part in text.split(":"))
    if not 1 <= smallest <= best <= largest:
        raise ValueError(text)
    return smallest, best, largest


def shapes(text: str) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """Parse ``input=1x128,16x128,128x128``. Raises ValueError."""
    name, _, sizes = text.partition("=")
    three = tuple(tuple(int(size) for size in shape.split("x")) for shape in sizes.split(","))
    if not name or len(three) != 3 or any(not 1 <= a <= b <= c for a, b, c in zip(*three, strict=True)):
        raise ValueError(text)
    return name, three


def ranges(order: BuildRequest, graph: Graph, largest: int) -> dict[str, Range]:
    """Return the range of each free size by name, as far as the request sets it; one input is enough for a
    name.
    """
    if order.batch and not graph.batched:
        raise StartError(f"{graph.path} takes no batches (its first sizes are fixed): leave out --batch.")
    by_name: dict[str, Range] = {}
    if graph.batched:
        by_name |= {str(value.sizes[0]): order.batch or (1, largest, largest) for value in graph.inputs}
    inputs = {value.name: value for value in graph.inputs}
    for name, three in order.shapes.items():
        if name not in inputs:
            raise StartError(f"--shapes names {name!r}; the inputs are {', '.join(inputs)}.")
        by_name |= _of_input(inputs[name], three)
    return by_name


def profiles(graph: Graph, by_name: Mapping[str, Range]) -> tuple[Profile, ...]:
    """Return the three shapes of each input with a free size. :class:`StartError` names a size without a
    range.
    """
    for value in graph.inputs:
        for size in value.sizes:
            if isinstance(size, str) and size not in by_name:
                example = ",".join("x".join(_example(value, size, place)) for place in range(3))
                raise StartError(
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


def _of_input(value: Value, three: tuple[tuple[int, ...], ...]) -> dict[str, Range]:
    if len(three[0]) != len(value.sizes):
        raise StartError(f"--shapes gives {value.name} {len(three[0])} sizes; it has {len(value.sizes)}.")
    by_name: dict[str, Range] = {}
    for size, bounds in zip(value.sizes, zip(*three, strict=True), strict=True):
        if isinstance(size, str):
            by_name[size] = bounds
        elif set(bounds) != {size}:
            raise StartError(f"--shapes gives {value.name} a size of {bounds[0]} where it has {size}.")
    return by_name


def _shape(value: Value, by_name: Mapping[str, Range], place: int) -> tuple[int, ...]:
    return tuple(by_name[size][place] if isinstance(size, str) else size for size in value.sizes)


def _example(value: Value, free: str, place: int) -> list[str]:
    batches = (1, 16, 128)
    return [
        str(size if isinstance(size, int) else 128 if size == free and at else batches[place])
        for at, size in enumerate(value.sizes)
    ]
