"""``sm build-model``: one model for one target, into a model repository."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from sm.commands import part_of_tools
from sm.errors import CommandError
from sm.settings import HERE, Settings
from trireme_extensions.convert import build_arguments
from trireme_extensions.convert.build_arguments import CHANGES, FASTEST
from trireme_extensions.convert.build_request import OPTIONS, BuildRequest, is_torch
from trireme_extensions.convert.build_request import options as words
from trireme_extensions.convert.graph_runner import Limits, limits
from trireme_extensions.convert.model_builder import STAGE_PREFIX, ModelBuilder, default_out
from trireme_extensions.convert.onnx_cpu.engines import Wanted
from trireme_extensions.convert.progress import PlainProgress


def wanted(engine: str, precision: str, tolerance: float, calibration: Path | None = None) -> Wanted:
    """Return what may run a model on the CPU target. Raises :class:`CommandError`."""
    if precision not in ("auto", "fp32", "bf16", "int8"):
        raise CommandError(f"--precision {precision} is not for --target cpu: use auto, fp32, bf16 or int8.")
    if precision == "int8" and calibration is None:
        raise CommandError("--precision int8 needs --calibration FOLDER, with typical inputs.")
    if precision == "int8" and engine == "onnxruntime":
        raise CommandError("--precision int8 on cpu is OpenVINO's: leave out --engine onnxruntime.")
    if not 0 < tolerance < 1:
        raise CommandError(f"--tolerance {tolerance:g} is not between 0 and 1: 0.01 is one percent.")
    return Wanted("auto" if engine == FASTEST else engine, precision, tolerance)


#: A plan has no output whose size depends on the inputs' content.
IMPOSSIBLE = "masks", "tensorrt"


def needed_tools(request: BuildRequest) -> str:
    """Return the words for a part of a request that only the tools can do; empty if there is none."""
    source, wanted = request.source, request.wanted
    precision = request.precision if wanted.precision == "auto" else wanted.precision
    parts = {
        f"the recipe of {request.model}": source is None,
        f"--source {source}, a model of PyTorch,": isinstance(source, str),
        f"--precision {precision}": precision == "int8" or wanted.precision == "bf16",
        "--engine openvino": wanted.engine == "openvino",
        "--calibration": request.calibration is not None,
        f"--engine {FASTEST}": request.measured,
    }
    return next((words for words, is_needed in parts.items() if is_needed), "")


def find_builder(request: BuildRequest, asked: Collection[str], say: Callable[[str], None]) -> Any:
    """Return the class that builds a request: the tools' if it needs them.

    ``asked``: the changes of the command line. Those of the model's own options are left out without the
    tools, because clients take both forms of a graph.

    Raises :class:`CommandError` if the tools are needed and not installed.
    """
    needed = needed_tools(request) or " ".join(f"--{name}" for name in request.changes)
    if not needed:
        return ModelBuilder
    try:
        return part_of_tools("desk_builder", needed).DeskBuilder
    except CommandError as error:
        if asked or needed_tools(request):
            raise
        say(f"{request.model}: warning: {OPTIONS} is not followed: {error}")
        return ModelBuilder


#: Options that are fields of the request as they are.
AS_ASKED = (
    *("batch", "workspace", "timing_cache", "calibration", "max_drop", "compare"),
    *("strongly_typed", "version_compatible", "hardware_compatibility"),
)
#: Removes the folders that a killed build would leave in the repository.
REMOVE_AT_END_OF_INPUT = ("sh", "-c", 'cat >/dev/null; rm -rf -- "$1"*', "sh")


def run(options: argparse.Namespace) -> int:
    """Build a model for one target, from its recipe or an ONNX file, into a model repository."""
    folder, target = HERE / "model" / options.name, options.target
    asked = [name for name in CHANGES if getattr(options, name)]
    files = [folder / OPTIONS, *([folder / "tensorrt.options"] if target == "tensorrt" else [])]
    usual = [word for file in files for word in words(file)]
    if usual:
        # The model's options come first; those of the command line override them.
        parser = argparse.ArgumentParser(prog="sm build-model")
        build_arguments.add_arguments(parser)
        options = parser.parse_args([*usual, *sys.argv[2:]])
    settings = Settings.read(os.environ)
    out = (options.out or default_out(settings.cache, options.target)).absolute()
    source = Path(options.source) if options.source and not is_torch(options.source) else options.source
    precision: Any = options.precision or ("auto" if target == "cpu" else "fp32")
    request = BuildRequest(
        model=options.name,
        target=options.target,
        out=out,
        source=source,
        # The graph of the CPU target stays in fp32: what runs it is chosen at each load.
        precision="fp32" if target == "cpu" else precision,
        wanted=wanted(options.engine, precision, options.tolerance, options.calibration)
        if target == "cpu"
        else Wanted(),
        changes=tuple(name for name in CHANGES if getattr(options, name) and (name, target) != IMPOSSIBLE),
        shapes=dict(options.shapes),
        measured=target == "cpu" and (options.engine == FASTEST or options.calibration is not None),
        **{name: getattr(options, name) for name in AS_ASKED},
    )
    if options.trial_seconds <= 0 or options.trial_memory <= 0:
        raise CommandError("--trial-seconds and --trial-memory must be more than 0.")
    if request.source is None and not (folder / "recipe" / "recipe.py").is_file():
        raise CommandError(f"{folder} has no recipe: name an ONNX file or a hub id with --source.")
    limits.set(Limits(options.trial_seconds, options.trial_memory * 2**20))
    progress = open_progress()
    builder = find_builder(request, asked, progress.say)(settings.cache, HERE / "model", progress)
    # ONNX Runtime may run for ever, and Python hears no signal meanwhile: Ctrl-C ends the process at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # If this process is killed, its end of the pipe is closed, and the folders of the build are removed.
    stages = f"{out}/{STAGE_PREFIX.format(os.getpid())}"
    with subprocess.Popen((*REMOVE_AT_END_OF_INPUT, stages), stdin=subprocess.PIPE, start_new_session=True):
        progress.say(f"built {builder.build(request)}")
    return 0


def open_progress() -> PlainProgress:
    """Return what shows the steps: with bars where the tools are installed."""
    try:
        shown: PlainProgress = part_of_tools("progress", "a bar").Progress(sys.stderr)
    except CommandError:
        return PlainProgress(sys.stderr)
    return shown
