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


def chosen_engine(version: Path, manifest: Manifest, config: Mapping[str, Any]) -> str:
    """Return the engine that starts on this machine take; empty if none has chosen yet."""
    if manifest.target != "cpu":
        return ""
    from trireme_extensions.convert.onnx_cpu.engines import KEPT, Chooser, Wanted  # imports NumPy

    cache = Settings.read(os.environ).cache / KEPT
    choice = Chooser(version, Wanted.read(config, os.environ), cache).cached()
    return f"here {choice.candidate}" if choice else ""


#: A row of the door ``sm.model_makers``.
ROW = ModelMaker(rebuild=build_again, describe=chosen_engine)
