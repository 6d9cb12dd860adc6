"""Describe a model of the CPU target, for ``sm inspect``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm.repository.manifest import Manifest
from sm.repository.model_makers import ModelMaker
from sm.settings import Settings


def chosen_engine(version: Path, manifest: Manifest, config: Mapping[str, Any]) -> str:
    """Return the engine that starts on this machine take; empty if none has chosen yet."""
    if manifest.target != "cpu":
        return ""
    from trireme_extensions.convert.onnx_cpu.engines import KEPT, Chooser, Wanted  # imports NumPy

    cache = Settings.read(os.environ).cache.expanduser() / KEPT
    choice = Chooser(version, Wanted.read(config, os.environ), cache).cached()
    return f"here {choice.candidate}" if choice else ""


#: A row of the door ``sm.model_makers``.
ROW = ModelMaker(describe=chosen_engine)
