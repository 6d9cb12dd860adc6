"""What ``sm build-model`` is asked for, and the sizes that follow from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sm.errors import StartError
from sm.repository.manifest import Precision, Profile, Target
from sm.tools.build.changes import Changes
from sm.tools.build.onnx_graph import Graph, Value

#: Smallest, best and largest size.
Range = tuple[int, int, int]
#: The largest batch where neither the order nor a hand-written configuration says one.
MAX_BATCH = 8


@dataclass(frozen=True)
class BuildRequest:
    """One model for one target. ``source``: an ONNX file, a name for PyTorch; the model's recipe if None."""

    model: str
    target: Target
    out: Path
    source: Path | str | None = None
    batch: Range | None = None
    precision: Precision = "fp32"
    changes: Changes = field(default_factory=Changes)
    #: Of TensorRT alone: MiB, a file read and written, inputs for INT8, whether types are the graph's.
    workspace: int | None = None
    timing_cache: Path | None = None
    calibration: Path | None = None
    strongly_typed: bool = True
    #: By input: its shapes, such as ``((1, 128), (16, 128), (128, 128))``.
    shapes: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.model) or self.model.startswith("."):
            raise StartError(f"{self.model!r} is no name for a model: letters, digits, _, - and . make one.")


def batch(text: str) -> Range:
    """``MIN:OPT:MAX``; ValueError if it is not."""
    smallest, best, largest = (int(part) for part in text.split(":"))
    if not 1 <= smallest <= best <= largest:
        raise ValueError(text)
    return smallest, best, largest


def shapes(text: str) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """``input=1x128,16x128,128x128``; ValueError if it is not."""
    name, _, said = text.partition("=")
    three = tuple(tuple(int(size) for size in shape.split("x")) for shape in said.split(","))
    if not name or len(three) != 3 or any(not 1 <= a <= b <= c for a, b, c in zip(*three, strict=True)):
        raise ValueError(text)
    return name, three


def ranges(order: BuildRequest, graph: Graph, largest: int) -> dict[str, Range]:
    """The range of each free size by its name, as far as the order says; one input may speak for all."""
    if order.batch and not graph.batched:
        raise StartError(f"{graph.path} takes no batches (its first sizes are fixed): leave out --batch.")
    found: dict[str, Range] = {}
    if graph.batched:
        found |= {str(value.sizes[0]): order.batch or (1, largest, largest) for value in graph.inputs}
    inputs = {value.name: value for value in graph.inputs}
    for name, three in order.shapes.items():
        if name not in inputs:
            raise StartError(f"--shapes names {name!r}; the inputs are {', '.join(inputs)}.")
        found |= _of_input(inputs[name], three)
    return found


def profiles(graph: Graph, known: Mapping[str, Range]) -> tuple[Profile, ...]:
    """The three shapes of each input that has a free size; :class:`StartError` names one that nobody said."""
    for value in graph.inputs:
        for size in value.sizes:
            if isinstance(size, str) and size not in known:
                example = ",".join("x".join(_example(value, size, place)) for place in range(3))
                raise StartError(
                    f"{value.name} has the free size {size!r}, for which a plan needs a range: "
                    f"--shapes {value.name}={example}"
                )
    return tuple(
        Profile(
            input=value.name,
            minimum=_shape(value, known, 0),
            optimum=_shape(value, known, 1),
            maximum=_shape(value, known, 2),
        )
        for value in graph.inputs
        if -1 in value.shape
    )


def fixed(graph: Graph, known: Mapping[str, Range]) -> list[str]:
    """Sizes that are free in the graph and not in the plan, the batch aside, as words for people."""
    batches = {value.sizes[0] for value in graph.inputs} if graph.batched else set()
    return [
        f"a {name} of {most} alone"
        for name, (least, _, most) in known.items()
        if least == most and name not in batches
    ]


def _of_input(value: Value, three: tuple[tuple[int, ...], ...]) -> dict[str, Range]:
    if len(three[0]) != len(value.sizes):
        raise StartError(f"--shapes gives {value.name} {len(three[0])} sizes; it has {len(value.sizes)}.")
    found: dict[str, Range] = {}
    for size, said in zip(value.sizes, zip(*three, strict=True), strict=True):
        if isinstance(size, str):
            found[size] = said
        elif set(said) != {size}:
            raise StartError(f"--shapes gives {value.name} a size of {said[0]} where it has {size}.")
    return found


def _shape(value: Value, known: Mapping[str, Range], place: int) -> tuple[int, ...]:
    return tuple(known[size][place] if isinstance(size, str) else size for size in value.sizes)


def _example(value: Value, free: str, place: int) -> list[str]:
    batches = (1, 16, 128)
    return [
        str(size if isinstance(size, int) else 128 if size == free and at else batches[place])
        for at, size in enumerate(value.sizes)
    ]
