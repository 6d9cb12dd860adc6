"""What a start and ``sm inspect`` ask of this extension: a plan for this GPU, and the engine of a CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm.repository.manifest import Manifest
from sm.repository.model_makers import ModelMaker
from sm.settings import Settings


def build_again(version: Path, out: Path, times: Path) -> None:
    """Build the plan of a version again, for the GPU of this box."""
    from trireme_extensions.convert.plans import rebuild

    rebuild(version, out, times)


def describe(version: Path, manifest: Manifest, config: Mapping[str, Any]) -> str:
    """Return what a manifest says of a build, and the engine that runs it here."""
    gpu = [f"compute capability {manifest.gpu.compute_capability}"] if manifest.gpu else []
    tool = f"{manifest.tool.name} {manifest.tool.version}"
    warning = ["with warnings"] if manifest.warnings else []
    engine = chosen_engine(version, manifest, config)
    return ", ".join([tool, manifest.precision, *manifest.changes, *gpu, *engine, *warning])


def chosen_engine(version: Path, manifest: Manifest, config: Mapping[str, Any]) -> list[str]:
    """Return the engine that starts on this machine take; none if none has chosen yet."""
    if manifest.target != "cpu":
        return []
    from trireme_extensions.convert.onnx_cpu.engines import KEPT, Chooser, Wanted  # imports NumPy

    cache = Settings.read(os.environ).cache / KEPT
    choice = Chooser(version, Wanted.read(config, os.environ), cache).cached()
    return [f"here {choice.candidate}"] if choice else []


#: A row of the door ``sm.model_makers``.
ROW = ModelMaker(rebuild=build_again, describe=describe)
