"""A TensorRT plan: what it is built of and for, and who builds it."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from sm.errors import StartError
from sm.repository.manifest import Precision, Profile

PLAN = "model.plan"
LOG = "model.plan.log"


@dataclass(frozen=True)
class Plan:
    """``profiles``: of each input that has a free size. ``workspace`` is in MiB."""

    model: str
    graph: Path
    file: Path
    log: Path
    profiles: tuple[Profile, ...] = ()
    precision: Precision = "fp32"
    workspace: int | None = None
    timing_cache: Path | None = None
    #: Types are in the graph; else the builder picks, which TensorRT 11 no longer does.
    strongly_typed: bool = True


def build(plan: Plan) -> str:
    """Build it by the ``tensorrt`` package where it imports, else by trtexec; TensorRT's version."""
    from sm.tensorrt import python_api, trtexec

    if importlib.util.find_spec("tensorrt"):
        return python_api.build(plan, importlib.import_module("tensorrt"))
    return trtexec.build(plan)


#: What a log says, and the sentence for it; ``{0}`` is what the pattern found.
FAILURES = (
    (
        r"CUDA initialization failure|no CUDA-capable device|CUDA driver version is insufficient",
        "there is no GPU that TensorRT can use: build on a machine that has one, with its driver; a "
        "container needs --gpus all",
    ),
    (
        # The last one that was looked for among the plugins and is not there.
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
    """Why there is no plan, from what was logged; ``how`` it ended where that says nothing."""
    for pattern, sentence in FAILURES:
        if found := re.search(pattern, text):
            return StartError(f"{plan.model}: {sentence.format(*found.groups())} (log: {plan.log}).")
    errors = re.findall(r"^.*\[E(?:RROR)?\] *(.+)$", text, re.MULTILINE)
    return StartError(
        f"{plan.model}: {how}: {(errors or ['it said nothing'])[0].rstrip('.')} (log: {plan.log})."
    )
