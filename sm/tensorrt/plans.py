"""A TensorRT plan: its inputs and options, and why a build failed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sm.errors import StartError
from sm.repository.manifest import Precision, Profile

PLAN = "model.plan"
LOG = "model.plan.log"


@dataclass(frozen=True)
class Plan:
    """A plan to build. ``profiles`` has each input with a free size; ``workspace`` is in MiB."""

    model: str
    graph: Path
    file: Path
    log: Path
    profiles: tuple[Profile, ...] = ()
    precision: Precision = "fp32"
    workspace: int | None = None
    timing_cache: Path | None = None
    #: True if the types come from the graph. Otherwise the builder chooses, which TensorRT 11 no longer
    #: supports.
    strongly_typed: bool = True


#: Patterns of a log and the sentence for each; ``{0}`` is the pattern's group.
FAILURES = (
    (
        r"CUDA initialization failure|no CUDA-capable device|CUDA driver version is insufficient",
        "there is no GPU that TensorRT can use: build on a machine that has one, with its driver; a "
        "container needs --gpus all",
    ),
    (
        # The last operator that no plugin provides.
        r"No importer registered for op: (\w+)(?:(?!No importer)[\s\S])*Plugin not found",
        "TensorRT does not know the operator {0}: serve the model with --target onnxruntime",
    ),
    (
        r"out of memory|OutOfMemory|OUT_OF_MEMORY",
        "the GPU's memory is too small: stop what else uses it, or ask for less with --batch, --shapes or "
        "--workspace",
    ),
    (
        r"Unknown option:? (\S+)",
        "this TensorRT does not know {0}: since TensorRT 11 types are in the graph, so leave out "
        "--no-strongly-typed",
    ),
)


def failed(plan: Plan, text: str, how: str) -> StartError:
    """Explain from the log why there is no plan; ``how`` the build ended is the fallback."""
    for pattern, sentence in FAILURES:
        if match := re.search(pattern, text):
            return StartError(f"{plan.model}: {sentence.format(*match.groups())} (log: {plan.log}).")
    errors = re.findall(r"^.*\[E(?:RROR)?\] *(.+)$", text, re.MULTILINE)
    return StartError(
        f"{plan.model}: {how}: {(errors or ['it said nothing'])[0].rstrip('.')} (log: {plan.log})."
    )
