"""Find sizes that a graph answers at, where the graph leaves them free.

A free size is a promise that exporters make easily: a detector with a stride of 32 takes multiples of 32
alone, a model of speech needs as many samples as one of its windows.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from sm.errors import StartError
from sm.tools.build.build_request import Range
from sm.tools.build.graph_runner import Runner
from sm.tools.build.onnx_graph import Graph
from sm.tools.build.random_inputs import RandomInputs, Sizes, elements, free_sizes

#: The same inputs in each build.
SEED = 3
#: Tried first: the lengths of texts.
LENGTHS = (1, 16, 77)
#: Then the sides of pictures, and the windows of sound.
USUAL = (32, 64, 224, 256, 512, 640, 160, 299, 320, 384, 400, 800, 1024, 16000)
#: A graph is compared at so many different sizes.
WANTED = 3
#: With more free sizes than this, all get the same number.
MAX_COMBINED = 5
#: A size that an error names is tried, if it is within these.
MIN_LEARNED, MAX_LEARNED = 8, 4096
#: No input of more numbers is tried, unless its sizes were asked for: 64 MB of float32.
MAX_ELEMENTS = 2**24
#: So many numbers of errors are tried.
MAX_NUMBERS = 24
#: The search ends after so long, with what it has found.
SEARCH_TIME_S = 60.0
#: A number of an error message that may be a size; not a place in a source file, nor a node's name.
NUMBER = re.compile(r"(?<![\w.:/])\d+(?![\w.:/]*\w)")


@dataclass
class SizeSearch:
    """``ranges`` are the sizes that were asked for, by name: the graph has to answer at those."""

    graph: Graph
    runner: Runner
    ranges: Mapping[str, Range] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    #: The last reason why it did not answer, and at which sizes.
    refusal: str = ""
    refused: list[str] = field(default_factory=list)

    def find(self) -> tuple[Sizes, ...]:
        """Return some sizes: those asked for, smallest first, or up to :data:`WANTED` that were found.

        Raises :class:`StartError` if the graph does not answer at the sizes asked for, or at none.
        """
        names = free_sizes(self.graph)
        asked = self._asked(names)
        others = [name for name in names if name not in self.ranges]
        if not others:
            for sizes in asked:
                if not self._answers(sizes):
                    raise StartError(
                        f"{self.graph.path} gives no answer at {label(sizes) or 'its fixed sizes'}: "
                        f"{self.refusal}. {NEXT_STEP}"
                    )
            return asked
        found = tuple(self._search(others, asked[len(asked) // 2]))
        if not found:
            example = "x".join(str(size) for size in self.graph.inputs[0].sizes)
            raise StartError(
                f"{self.graph.path} gives no answer at any of {len(self.refused)} sizes that were tried "
                f"({', '.join(self.refused[:3])}, …): {self.refusal}. Name sizes that it takes with "
                f"--shapes {self.graph.inputs[0].name}=MIN,OPT,MAX (each {example}), or build with "
                "--no-compare."
            )
        return found

    def _asked(self, names: tuple[str, ...]) -> tuple[Sizes, ...]:
        """The smallest, the best and the largest of the sizes asked for; one if they are the same."""
        three = [
            {name: self.ranges[name][place] for name in names if name in self.ranges} for place in range(3)
        ]
        return tuple(sizes for place, sizes in enumerate(three) if sizes not in three[:place])

    def _search(self, names: list[str], asked: Sizes) -> Iterator[Sizes]:
        deadline, count = self.clock() + SEARCH_TIME_S, 0
        last: Sizes = {}
        for sizes in self._candidates(names):
            if count == WANTED or (count and self.clock() > deadline):
                break
            if self._is_large({**asked, **sizes}):
                continue
            if self._answers({**asked, **sizes}):
                count, last = count + 1, {**asked, **sizes}
                yield last
            elif self.clock() > deadline:
                break
        # Two sizes that were always equal may have been exported as one.
        if last and len(names) > 1 and len(set(last.values())) == 1:
            unequal = {**last, names[-1]: 2 * last[names[-1]]}
            if self._answers(unequal):
                yield unequal

    def _candidates(self, names: list[str]) -> Iterator[Sizes]:
        """First the same number for all; then some of them 1, as a batch is beside a length."""
        numbers: dict[int, None] = {}
        for number in self._numbers(numbers):
            yield dict.fromkeys(names, number)
        if 1 < len(names) <= MAX_COMBINED:
            for number in [each for each in numbers if each > 1]:
                for choice in itertools.product((1, number), repeat=len(names)):
                    if len(set(choice)) > 1:
                        yield dict(zip(names, choice, strict=True))

    def _numbers(self, numbers: dict[int, None]) -> Iterator[int]:
        """Numbers to try, each once: the usual ones, and before the next of them those of the last error."""
        for usual in (*LENGTHS, *USUAL):
            for number in (*self._learned(), usual):
                if number not in numbers:
                    numbers[number] = None
                    yield number
            if len(numbers) > MAX_NUMBERS:
                break

    def _learned(self) -> list[int]:
        """What the last error says of sizes: ``16 by 200`` tells that 200 may do."""
        found = dict.fromkeys(int(number) for number in NUMBER.findall(self.refusal))
        return [number for number in found if MIN_LEARNED <= number <= MAX_LEARNED][:4]

    def answers_zeros(self, sizes: Sizes) -> bool:
        """True if it answers zeros of these sizes, as Triton sends for a warm-up."""
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
        try:
            self.runner.run(outputs, dict(RandomInputs(self.graph, SEED).feed(sizes)))
        except Exception as error:  # onnxruntime's classes have no common parent
            self.refusal = reason(error)
            self.refused.append(label(sizes))
            return False
        return True


#: Where in ONNX Runtime's source a condition stands.
SOURCE = re.compile(r"/\S+:\d+ .*? was false\. ")
#: What to do about a graph that does not answer.
NEXT_STEP = "Name other sizes with --shapes, or build with --no-compare."


def label(sizes: Sizes) -> str:
    """Sizes in words: one number if all are the same, else each, such as ``32x64``."""
    return "x".join(map(str, sizes.values() if len(set(sizes.values())) > 1 else [*sizes.values()][:1]))


def reason(error: Exception) -> str:
    """The end of ONNX Runtime's message, which names the innermost node and what it needs."""
    line = SOURCE.sub("", " ".join(str(error).split()))
    return line.rpartition("Status Message: ")[2].rstrip(".") or type(error).__name__
