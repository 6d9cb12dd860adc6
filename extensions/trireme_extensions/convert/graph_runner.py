"""Run a graph in this process, with ONNX Runtime on the CPU, on random inputs of sizes at which it answers.

Exporters declare a size free although the graph does not answer at every size: a detector with a stride of 32
takes only multiples of 32, a model of speech needs at least the samples of one window.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from numpy.typing import NDArray

from sm.errors import CommandError
from sm.triton.tensors import DTYPES
from trireme_extensions.convert.build_arguments import Range
from trireme_extensions.convert.onnx_cpu.engines import (
    FATAL,
    FILE_SHARE,
    TRIAL_BYTES,
    graph_bytes,
    limited_memory,
)
from trireme_extensions.convert.onnx_graph import Graph, Value

#: The values of a text input.
WORDS = ("", "a", "Hello", "zwölf Boxkämpfer", "3.5")
#: A size that is the sum of others, such as ``past_sequence_length + 1``.
SUM = re.compile(r"\s*\+\s*")
Feed = Mapping[str, NDArray[Any]]
#: Sizes by name.
Sizes = Mapping[str, int]


class RandomInputs:
    """Makes inputs. The same ``seed`` gives the same inputs."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.graph = graph
        self.generator = np.random.default_rng(seed)

    def feed(self, sizes: Sizes, batch: int = 1) -> Feed:
        """Make the graph's inputs. ``batch`` is ignored if the graph takes no batches."""
        return {value.name: self._array(value, sizes, batch) for value in self.graph.inputs}

    def _array(self, value: Value, sizes: Sizes, batch: int) -> NDArray[Any]:
        shape = tuple(_number(size, sizes) for size in value.sizes)
        if self.graph.batched:
            shape = (batch, *shape[1:])
        if value.datatype == "TYPE_STRING":
            return self.generator.choice(np.array(WORDS, object), shape)
        kind = DTYPES.get(value.datatype.removeprefix("TYPE_"), np.dtype(np.float32))
        if np.issubdtype(kind, np.floating):
            return self.generator.standard_normal(shape).astype(kind)
        if value.name in self.graph.compared:
            return np.full(shape, self.graph.compared[value.name], kind)
        bound = None if value.datatype == "TYPE_BOOL" else self.graph.bounds.get(value.name)
        if bound:
            return self.generator.integers(0, min(bound, 2**7), shape).astype(kind)
        if value.datatype == "TYPE_UINT8":
            return self.generator.integers(0, 256, shape).astype(kind)
        # An integer input without a table is most likely a mask; a mask of zeros would hide everything.
        mask = np.asarray(self.generator.integers(0, 2, shape))
        mask[(..., slice(1)) if shape else ...] = 1
        return mask.astype(kind)


def free_sizes(graph: Graph) -> tuple[str, ...]:
    """Return the names of the sizes that a caller chooses, in the order of the inputs, without the batch."""
    return tuple(dict.fromkeys(_free_sizes(graph)))


def elements(graph: Graph, sizes: Sizes) -> list[int]:
    """Return how many numbers each input has."""
    skipped = int(graph.batched)
    return [math.prod(_number(size, sizes) for size in value.sizes[skipped:]) for value in graph.inputs]


def named_sizes(graph: Graph, sizes: Sizes) -> dict[str, int]:
    """Return the number of each free size by its name, including sums."""
    free = [size for value in graph.inputs for size in value.sizes if isinstance(size, str)]
    return {size: _number(size, sizes) for size in free if size in sizes or SUM.search(size)}


def _free_sizes(graph: Graph) -> Iterator[str]:
    for value in graph.inputs:
        for size in value.sizes[1:] if graph.batched else value.sizes:
            if isinstance(size, str):
                yield from (part for part in SUM.split(size) if not part.isdecimal())


def _number(size: int | str, sizes: Sizes) -> int:
    if isinstance(size, int):
        return size
    return sum(int(part) if part.isdecimal() else sizes.get(part, 1) for part in SUM.split(size))


PROVIDERS = ["CPUExecutionProvider"]
#: ONNX Runtime's message for an opset that it does not know.
NEW_OPSET = re.compile(r"Opset (\d+) is under development")
NEWEST_IR_VERSION = re.compile(r"max supported IR version: (\d+)")


class Runner(Protocol):
    """Runs inputs: an ONNX Runtime session, or the PyTorch module that a graph was exported from."""

    def run(self, output_names: list[str], input_feed: Feed, /) -> list[NDArray[Any]]:
        """Return the outputs, sorted by name."""


@dataclass(frozen=True)
class Limits:
    """The time and memory that one run of somebody's graph, or its load, may take."""

    seconds: float = 120.0
    #: Bytes beside four times the graph's files; see ``TRIAL_BYTES``.
    bytes: int = TRIAL_BYTES


#: The limits of this thread's sessions.
limits: ContextVar[Limits | None] = ContextVar("limits", default=None)
#: Seconds in which ONNX Runtime ends a run that is told to. A single node that computes on is not told.
END_S = 10.0


class TrialTooLong(CommandError):
    """The graph had no answer in time."""


@contextlib.contextmanager
def after(seconds: float, call: Callable[[], None]) -> Iterator[None]:
    """Call a function in a thread if the body runs for longer."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class LimitedSession:
    """A session of ONNX Runtime that neither computes for ever nor takes all memory."""

    def __init__(self, path: Path, options: Any) -> None:
        self._path, self._limits = path, limits.get() or Limits()
        self._bytes = self._limits.bytes + FILE_SHARE * graph_bytes(path)
        with self._within_limits():
            self._session = onnxruntime.InferenceSession(str(path), options, providers=PROVIDERS)

    def run(self, output_names: list[str], input_feed: Feed, /) -> list[NDArray[Any]]:
        """Return the outputs. Raises :class:`TrialTooLong`, and what ONNX Runtime raises."""
        options, late = onnxruntime.RunOptions(), threading.Event()

        def end() -> None:
            late.set()
            options.terminate = True

        try:
            with after(self._limits.seconds, end), self._within_limits():
                outputs: list[NDArray[Any]] = self._session.run(output_names, dict(input_feed), options)
                return outputs
        except Exception as error:
            if late.is_set():
                raise TrialTooLong(self._too_long()) from error
            raise

    @contextlib.contextmanager
    def _within_limits(self) -> Iterator[None]:
        """Limit the process's memory, and end it if a load or a node does not end."""
        with after(self._limits.seconds + END_S, self._end_process), limited_memory(self._bytes):
            yield

    def _too_long(self) -> str:
        return (
            f"{self._path} has no answer after {self._limits.seconds:g} s: it may have a loop without an "
            "end. If it needs longer, say how long with --trial-seconds."
        )

    def _end_process(self) -> None:
        sys.stderr.write(f"error: {self._too_long()}\n")
        sys.stderr.flush()
        os._exit(1)


def session(path: Path, *, optimized: bool = True) -> Runner:
    """Open a session on the CPU, with all of ONNX Runtime's optimizations or with none."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return LimitedSession(path, options)
    except Exception as error:
        raise CommandError(f"{path} cannot be run: {_explain(error)}.") from error


def _explain(error: Exception) -> str:
    reason = str(error).splitlines()[0]
    if unknown := NEW_OPSET.search(reason):
        known = onnxruntime.__version__
        return f"ONNX Runtime {known} does not know opset {unknown[1]}: export it with an older one"
    return reason


@functools.cache
def newest_ir_version() -> int:
    """Return the newest version of ONNX's file format that ONNX Runtime reads: its refusal names it."""
    graph = onnx.parser.parse_graph("trial (float[1] x) => (float[1] y) { y = Identity (x) }")
    model = onnx.helper.make_model(graph, ir_version=onnx.IR_VERSION)
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=PROVIDERS)
    except Exception as error:  # onnxruntime's classes have no common parent
        newest = NEWEST_IR_VERSION.search(str(error))
        return int(newest[1]) if newest else onnx.IR_VERSION
    return onnx.IR_VERSION


#: The seed of random inputs, so that each build has the same.
SEED = 3
#: Sizes that are tried first: lengths of texts.
TEXT_LENGTHS = (1, 16, 77)
#: Sizes that are tried next: sides of pictures and windows of sound.
USUAL_SIZES = (32, 64, 224, 256, 512, 640, 160, 299, 320, 384, 400, 800, 1024, 16000)
#: The search ends when the graph has answered at this many different sizes.
MAX_FOUND_SIZES = 3
#: With more free sizes than this, only equal numbers for all of them are tried.
MAX_COMBINED = 5
#: A number in an error message is tried as a size if it is within these.
MIN_ERROR_SIZE, MAX_ERROR_SIZE = 8, 4096
#: Numbers in one input: 64 MB of float32. Larger inputs are tried only if the request sets their sizes.
MAX_ELEMENTS = 2**24
#: The most numbers that are tried.
MAX_NUMBERS = 24
#: The search ends after 60 s with the sizes that it has found.
SEARCH_TIME_S = 60.0
#: A number in an error message that may be a size: not a line of a source file, not part of a node's name.
NUMBER = re.compile(r"(?<![\w.:/])\d+(?![\w.:/]*\w)")


@dataclass
class SizeSearch:
    """Searches sizes at which a graph answers."""

    graph: Graph
    runner: Runner
    #: The sizes that the request sets, by name: the graph must answer at those.
    ranges: Mapping[str, Range] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    #: The last error of the graph.
    refusal: str = ""
    #: The sizes at which it did not answer.
    refused: list[str] = field(default_factory=list)
    #: The shapes of each answer's inputs and outputs, by name.
    shapes: list[Mapping[str, tuple[int, ...]]] = field(default_factory=list)

    def find(self) -> tuple[Sizes, ...]:
        """Return the requested sizes, smallest first, or up to :data:`MAX_FOUND_SIZES` that were found.

        Raises :class:`CommandError` if the graph does not answer at the requested sizes, or at none.
        """
        names = free_sizes(self.graph)
        requested = self._requested(names)
        others = [name for name in names if name not in self.ranges]
        if not others:
            for sizes in requested:
                if not self._answers(sizes):
                    raise CommandError(
                        f"{self.graph.path} gives no answer at {format_sizes(sizes) or 'its fixed sizes'}: "
                        f"{self.refusal}. {NEXT_STEP}"
                    )
            return requested
        found_sizes = tuple(self._search(others, requested[len(requested) // 2]))
        if not found_sizes:
            example = "x".join(str(size) for size in self.graph.inputs[0].sizes)
            raise CommandError(
                f"{self.graph.path} gives no answer at any of {len(self.refused)} sizes that were tried "
                f"({', '.join(self.refused[:3])}, …): {self.refusal}. Name sizes that it takes with "
                f"--shapes {self.graph.inputs[0].name}=MIN,OPT,MAX (each {example}), or build with "
                "--no-compare."
            )
        return found_sizes

    def _requested(self, names: tuple[str, ...]) -> tuple[Sizes, ...]:
        """Return the smallest, the optimal and the largest requested sizes, without duplicates."""
        all_sizes = [
            {name: self.ranges[name][index] for name in names if name in self.ranges} for index in range(3)
        ]
        return tuple(sizes for index, sizes in enumerate(all_sizes) if sizes not in all_sizes[:index])

    def _search(self, names: list[str], requested: Sizes) -> Iterator[Sizes]:
        deadline, count = self.clock() + SEARCH_TIME_S, 0
        last: Sizes = {}
        for sizes in self._candidates(names):
            if count == MAX_FOUND_SIZES or (count and self.clock() > deadline):
                break
            if self._is_large({**requested, **sizes}):
                continue
            if self._answers({**requested, **sizes}):
                count, last = count + 1, {**requested, **sizes}
                yield last
            elif self.clock() > deadline:
                break
        # Two sizes that were always equal may have been exported as one.
        if last and len(names) > 1 and len(set(last.values())) == 1:
            unequal = {**last, names[-1]: 2 * last[names[-1]]}
            if self._answers(unequal):
                yield unequal

    def _candidates(self, names: list[str]) -> Iterator[Sizes]:
        """Yield the same number for all names, then combinations with 1, as a batch beside a length is."""
        numbers: dict[int, None] = {}
        for number in self._numbers(numbers):
            yield dict.fromkeys(names, number)
        if 1 < len(names) <= MAX_COMBINED:
            for number in [tried for tried in numbers if tried > 1]:
                for choice in itertools.product((1, number), repeat=len(names)):
                    if len(set(choice)) > 1:
                        yield dict(zip(names, choice, strict=True))

    def _numbers(self, numbers: dict[int, None]) -> Iterator[int]:
        """Yield numbers to try, each once: the usual ones, and between them those of the last error."""
        for usual in (*TEXT_LENGTHS, *USUAL_SIZES):
            for number in (*self._numbers_of_error(), usual):
                if number not in numbers:
                    numbers[number] = None
                    yield number
            if len(numbers) > MAX_NUMBERS:
                break

    def _numbers_of_error(self) -> list[int]:
        """Return the possible sizes in the last error: after ``16 by 200``, 200 may work."""
        unique = dict.fromkeys(int(number) for number in NUMBER.findall(self.refusal))
        return [number for number in unique if MIN_ERROR_SIZE <= number <= MAX_ERROR_SIZE][:4]

    def answers_zeros(self, sizes: Sizes) -> bool:
        """True if the graph answers zeros of these sizes, which Triton sends to warm up."""
        feed = RandomInputs(self.graph, SEED).feed(sizes)
        zeros = {
            name: np.full_like(array, "" if array.dtype == object else 0) for name, array in feed.items()
        }
        return self._run(zeros) is not None

    def _is_large(self, sizes: Sizes) -> bool:
        return any(count > MAX_ELEMENTS for count in elements(self.graph, sizes))

    def _answers(self, sizes: Sizes) -> bool:
        feed = RandomInputs(self.graph, SEED).feed(sizes)
        answer = self._run(feed)
        if answer is None:
            self.refused.append(format_sizes(sizes))
            return False
        self.shapes.append({name: array.shape for name, array in {**feed, **answer}.items()})
        return True

    def _run(self, feed: Feed) -> Feed | None:
        """Return the outputs by name; None, and the refusal, if the graph does not answer."""
        outputs = [value.name for value in self.graph.outputs]
        try:
            return dict(zip(outputs, self.runner.run(outputs, dict(feed)), strict=True))
        except TrialTooLong:  # another size would take as long
            raise
        except Exception as error:  # onnxruntime's classes have no common parent
            self.refusal = error_reason(error)
            return None


#: The part of a message that names a line in ONNX Runtime's source.
SOURCE = re.compile(r"/\S+:\d+ .*? was false\. ")
#: The advice for a graph that does not answer.
NEXT_STEP = "Name other sizes with --shapes, or build with --no-compare."


def format_sizes(sizes: Sizes) -> str:
    """Format sizes: one number if all are the same, else each, such as ``32x64``."""
    return "x".join(map(str, sizes.values() if len(set(sizes.values())) > 1 else [*sizes.values()][:1]))


def error_reason(error: Exception) -> str:
    """Return the end of ONNX Runtime's message, which names the innermost node and what it needs."""
    line = SOURCE.sub("", " ".join(str(error).split()))
    return line.rpartition("Status Message: ")[2].rstrip(".") or type(error).__name__
