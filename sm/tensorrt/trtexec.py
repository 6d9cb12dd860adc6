"""Build a plan with ``trtexec``, NVIDIA's command line, which its image has in /usr/src/tensorrt/bin."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

from sm import hardware
from sm.errors import StartError
from sm.tensorrt.plans import Plan, explain_failure

PROGRAM = "trtexec"
#: Where NVIDIA's packages install it. This folder is not on PATH.
INSTALLED = Path("/usr/src/tensorrt/bin") / PROGRAM
#: The version in trtexec's output: ``[TensorRT v101303]`` is 10.13.3.
BANNER = re.compile(r"\[TensorRT v(\d+)(\d\d)(\d\d)\]")


def find() -> str | None:
    """Return the path of trtexec; None if it is not installed."""
    return shutil.which(PROGRAM) or (str(INSTALLED) if INSTALLED.is_file() else None)


def command(plan: Plan, program: str = PROGRAM) -> tuple[str, ...]:
    """Return the command line that builds a plan."""
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
        *(["--stronglyTyped"] if plan.strongly_typed else _precision(plan)),
    )


def build(plan: Plan) -> str:
    """Build a plan, and write trtexec's output into ``plan.log``.

    Returns:
        TensorRT's version.

    Raises:
        StartError: There is no plan; the sentence says why.
    """
    program = find()
    if program is None:
        raise StartError(
            "a plan is built by the Python package tensorrt or by trtexec, and neither is here: build in "
            "NVIDIA's image, or pip install tensorrt."
        )
    with plan.log.open("w") as log:
        code = subprocess.run(command(plan, program), stdout=log, stderr=log, check=False).returncode
    text = plan.log.read_text(errors="replace")
    if code < 0:
        raise StartError(
            f"{plan.model}: trtexec was killed by {signal.Signals(-code).name}; if that was the kernel, the "
            f"machine or container is short of memory: give it more, or build elsewhere (log: {plan.log})."
        )
    if code or not plan.file.is_file():
        raise explain_failure(plan, text, f"trtexec ended with {code}")
    if match := BANNER.search(text):
        return ".".join(str(int(part)) for part in match.groups())
    return hardware.tensorrt() or "unknown"


def _precision(plan: Plan) -> list[str]:
    return [] if plan.precision == "fp32" else [f"--{plan.precision}"]
