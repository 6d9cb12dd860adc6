"""Find sizes that a graph answers at, where the graph leaves them free.

Exporters declare a size free although the graph does not answer at every size: a detector with a stride of 32
takes only multiples of 32, a model of speech needs at least the samples of one window.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from sm.commands.build.build_request import Range
from sm.commands.build.graph_runner import Runner
from sm.commands.build.onnx_graph import Graph
from sm.commands.build.random_inputs import RandomInputs, Sizes, elements, free_sizes
from sm.errors import CommandError

#: The same inputs in each build.
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
        try:
            self.runner.run([value.name for value in self.graph.outputs], zeros)
        except Exception:
            return False
        return True

    def _is_large(self, sizes: Sizes) -> bool:
        return any(count > MAX_ELEMENTS for count in elements(self.graph, sizes))

    def _answers(self, sizes: Sizes) -> bool:
        outputs = [value.name for value in self.graph.outputs]
        feed = RandomInputs(self.graph, SEED).feed(sizes)
        try:
            arrays = self.runner.run(outputs, dict(feed))
        except Exception as error:  # onnxruntime's classes have no common parent
            self.refusal = error_reason(error)
            self.refused.append(format_sizes(sizes))
            return False
        answer = {**feed, **dict(zip(outputs, arrays, strict=True))}
        self.shapes.append({name: array.shape for name, array in answer.items()})
        return True


#: The part of a message that names a line in ONNX Runtime's source.
SOURCE = re.compile(r"/\S+:\d+ .*? was false\. ")
#: What to do about a graph that does not answer.
NEXT_STEP = "Name other sizes with --shapes, or build with --no-compare."


def format_sizes(sizes: Sizes) -> str:
    """Format sizes: one number if all are the same, else each, such as ``32x64``."""
    return "x".join(map(str, sizes.values() if len(set(sizes.values())) > 1 else [*sizes.values()][:1]))


def error_reason(error: Exception) -> str:
    """Return the end of ONNX Runtime's message, which names the innermost node and what it needs."""
    line = SOURCE.sub("", " ".join(str(error).split()))
    return line.rpartition("Status Message: ")[2].rstrip(".") or type(error).__name__
