"""Record a graph's inputs and outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from sm.commands.build.graph_runner import Feed, Runner

#: Numbers of each output in the bundle. More would need as much space as the weights.
GOLDEN_NUMBERS = 20_000


class RecordingRunner:
    """A runner that keeps the inputs and outputs of its last run."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}

    def run(self, names: list[str], feed: Feed, /) -> list[Any]:
        answers = self.runner.run(names, feed)
        self.inputs, self.outputs = dict(feed), dict(zip(names, answers, strict=True))
        return answers


def sample_evenly(array: Any) -> Any:
    """At most GOLDEN_NUMBERS of an array's numbers, evenly spread."""
    flat = array.reshape(-1)
    return np.ascontiguousarray(flat[:: max(1, len(flat) // GOLDEN_NUMBERS)][:GOLDEN_NUMBERS])
