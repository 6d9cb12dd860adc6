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
    """A plan to build."""

    model: str
    #: The ONNX file.
    graph: Path
    #: Where to write the plan.
    file: Path
    #: Where to write TensorRT's messages.
    log: Path
    #: The shapes of each input with a free size.
    profiles: tuple[Profile, ...] = ()
    precision: Precision = "fp32"
    #: MiB of GPU memory for the build; None for TensorRT's default.
    workspace: int | None = None
    #: A file of measurements that makes later builds faster.
    timing_cache: Path | None = None
    #: True if the types come from the graph. Otherwise TensorRT chooses them, which version 11 cannot do.
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


def explain_failure(plan: Plan, text: str, outcome: str) -> StartError:
    """Explain why a build failed.

    Args:
        plan: The plan.
        text: The log.
        outcome: How the build ended; used if no known failure is in the log.
    """
    for pattern, sentence in FAILURES:
        if match := re.search(pattern, text):
            return StartError(f"{plan.model}: {sentence.format(*match.groups())} (log: {plan.log}).")
    errors = re.findall(r"^.*\[E(?:RROR)?\] *(.+)$", text, re.MULTILINE)
    return StartError(
        f"{plan.model}: {outcome}: {(errors or ['it said nothing'])[0].rstrip('.')} (log: {plan.log})."
    )
