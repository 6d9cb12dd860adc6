"""TensorRT plans: build one with ``trtexec``, and again for the GPU of this box.

A start calls :func:`rebuild` for ``TRIREME_BUILD_ENGINES=missing``. It needs no ONNX library: the graph
beside a plan is the one from which the plan was built, with its precision.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sm import hardware
from sm.commands import part_of_tools
from sm.errors import CommandError, StartError
from sm.repository import gpu_driver, manifest
from sm.repository.manifest import Compatibility, Manifest, Precision, Profile, Tool

PLAN = "model.plan"
LOG = "model.plan.log"


@dataclass(frozen=True)
class TensorRTPlan:
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
    #: True if later versions of TensorRT shall run the plan, which is a little larger and slower then.
    version_compatible: bool = False
    #: Which other GPUs shall run it.
    hardware_compatibility: Compatibility = "none"


#: What a plan has of a build's request, and of the manifest of an older plan.
KEPT = ("precision", "strongly_typed", "version_compatible", "hardware_compatibility")
#: TensorRT's names of the kinds of compatibility.
LEVELS = {"ampere+": "AMPERE_PLUS", "sameComputeCapability": "SAME_COMPUTE_CAPABILITY"}
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
        r"Unknown option:? (--(?:fp16|bf16|int8))",
        "this TensorRT does not know {0}: since TensorRT 11 types are in the graph, so leave out "
        "--no-strongly-typed",
    ),
    (r"Unknown option:? (\S+)", "this TensorRT does not know {0}: leave it out, or build with a newer one"),
)


def explain_failure(plan: TensorRTPlan, text: str, outcome: str) -> StartError:
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


PROGRAM = "trtexec"
#: Where NVIDIA's packages and its development images install it. These folders are not always on PATH.
FOLDERS = (Path("/usr/src/tensorrt/bin"), Path("/opt/tensorrt/bin"))
#: From this version of TensorRT on every network is strongly typed, and the option does nothing.
ALWAYS_TYPED = 11
#: The version in trtexec's output: ``[TensorRT v101303]`` is 10.13.3.
BANNER = re.compile(r"\[TensorRT v(\d+)(\d\d)(\d\d)\]")


def find_trtexec() -> str | None:
    """Return the path of trtexec; None if it is not installed."""
    installed = (folder / PROGRAM for folder in FOLDERS)
    return shutil.which(PROGRAM) or next((str(path) for path in installed if path.is_file()), None)


def trtexec_command(
    plan: TensorRTPlan, program: str = PROGRAM, version: str | None = None
) -> tuple[str, ...]:
    """Return the command line that builds a plan; ``version`` is TensorRT's, None if unknown."""
    has_option = version is None or int(version.partition(".")[0]) < ALWAYS_TYPED
    shapes = {
        option: ",".join(
            f"{bounds.input}:{'x'.join(map(str, getattr(bounds, field)))}" for bounds in plan.profiles
        )
        for option, field in (("min", "minimum"), ("opt", "optimum"), ("max", "maximum"))
    }
    return (
        program,
        f"--onnx={plan.graph}",
        f"--saveEngine={plan.file}",
        "--skipInference",
        *(f"--{option}Shapes={value}" for option, value in shapes.items() if value),
        *([f"--memPoolSize=workspace:{plan.workspace}"] if plan.workspace else []),
        *([f"--timingCacheFile={plan.timing_cache}"] if plan.timing_cache else []),
        *(["--stronglyTyped"] if plan.strongly_typed and has_option else []),
        *(["--versionCompatible"] if plan.version_compatible else []),
        *(
            [f"--hardwareCompatibilityLevel={plan.hardware_compatibility}"]
            if plan.hardware_compatibility in LEVELS
            else []
        ),
        *([f"--{plan.precision}"] if not plan.strongly_typed and plan.precision != "fp32" else []),
    )


def build_with_trtexec(plan: TensorRTPlan) -> str:
    """Build a plan, and write trtexec's output into ``plan.log``.

    Returns:
        TensorRT's version.

    Raises:
        StartError: There is no plan; the sentence says why.
    """
    program = find_trtexec()
    if program is None:
        raise StartError(
            "a plan is built by the Python package tensorrt or by trtexec, and neither is here: build in "
            "NVIDIA's image, or pip install tensorrt 'trireme-serving[tools]'."
        )
    environment = {**os.environ, **gpu_driver.of_this_machine().variables(os.environ)}
    available = hardware.tensorrt()
    command = trtexec_command(plan, program, available)
    with plan.log.open("w") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
    code = done.returncode
    text = plan.log.read_text(errors="replace")
    if code < 0:
        raise StartError(
            f"{plan.model}: trtexec was killed by {signal.Signals(-code).name}; if that was the kernel, the "
            f"machine or container is short of memory: give it more, or build elsewhere (log: {plan.log})."
        )
    if code or not plan.file.is_file():
        raise explain_failure(plan, text, f"trtexec ended with {code}")
    if match := BANNER.search(text):
        printed = ".".join(str(int(part)) for part in match.groups())
        # The banner has three numbers of four.
        return available if available and available.startswith(f"{printed}.") else printed
    return available or "unknown"


class Build(NamedTuple):
    """What the manifest has of a build: the tool, its GPU, the seconds that it took, and a plan's shapes."""

    tool: Tool
    gpu: hardware.Gpu | None = None
    seconds: float | None = None
    profiles: tuple[Profile, ...] = ()


def find_builder() -> Callable[[TensorRTPlan], str]:
    """Return what builds a plan and says TensorRT's version: the tools with the package, or trtexec."""
    if importlib.util.find_spec("tensorrt"):
        with contextlib.suppress(CommandError):
            found: Any = part_of_tools("build.tensorrt_package", "the Python package tensorrt")
            return found.build_with_package  # type: ignore[no-any-return]
    return build_with_trtexec


def build_plan(plan: TensorRTPlan) -> Build:
    """Build a plan with what :func:`find_builder` finds.

    Raises:
        StartError: There is no plan; the sentence says why.
    """
    cuda = os.environ.get("CUDA_VERSION", "")
    if old := gpu_driver.find_old_gpu(hardware.gpus(), cuda, hardware.tensorrt() or ""):
        raise StartError(f"{plan.model}: {old}: build on a newer GPU, or with an older TensorRT.")
    started = time.monotonic()
    tool, gpu = Tool(name="TensorRT", version=find_builder()(plan)), next(iter(hardware.gpus()), None)
    return Build(tool, gpu, round(time.monotonic() - started, 1), plan.profiles)


GRAPH = "model.onnx"


def rebuild(version: Path, out: Path, timing_cache: Path) -> None:
    """Build a plan again.

    Args:
        version: The version folder of the old plan, with its graph and manifest.
        out: Where to write plan, log and manifest.
        timing_cache: TensorRT's measurements, from earlier builds and for later ones.

    Raises:
        StartError: There is no plan; the sentence says why.
    """
    old = Manifest.read(version)
    if old is None or not (version / GRAPH).is_file():
        raise StartError(
            f"{version} has no {GRAPH} and manifest.json to build a plan from: sm build-model "
            f"{version.parent.name} --target tensorrt puts them there."
        )
    out.mkdir(parents=True, exist_ok=True)
    plan = TensorRTPlan(
        model=version.parent.name,
        graph=version / GRAPH,
        file=out / PLAN,
        log=out / LOG,
        profiles=old.profiles,
        timing_cache=timing_cache,
        **{name: getattr(old, name) for name in KEPT},
    )
    old.model_copy(update={**build_plan(plan)._asdict(), "built": manifest.now()}).write(out)
