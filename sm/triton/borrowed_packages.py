"""Let Python models import packages of the box that their own Python does not have.

NVIDIA's image runs Python models on the system's Python, which has no engine for the CPU target's models. The
Dockerfile puts this file among that Python's packages as ``trireme_packages.py``, with a ``.pth`` file that
imports it whenever the interpreter starts; so it imports nothing of the box.

The box's packages are asked last. They hide neither the system's packages nor those that a team installed or
put beside its ``model.py``, which PYTHONPATH would (and Triton 2.51 ignores that). Only processes of Triton
have the variable: pip in a derived image must not take the box's packages for the system's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType
from typing import Any

#: The box sets it to the folder of its packages.
VARIABLE = "TRIREME_PACKAGES"


class LastFinder(DistributionFinder):
    """Finds modules, and what ``importlib.metadata`` knows of them, that no other finder has found."""

    def __init__(self, folder: str) -> None:
        self._path = [folder]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module at the top. Those below it are found in its own folder, by others."""
        return PathFinder.find_spec(name, self._path, target) if path is None else None

    def find_distributions(self, context: Any = None) -> Iterable[Distribution]:
        """Find a package's metadata, unless other folders than the interpreter's are searched."""
        if context is not None and "path" in vars(context):
            return ()
        name = getattr(context, "name", None)
        return PathFinder.find_distributions(DistributionFinder.Context(name=name, path=self._path))


def install() -> None:
    """Append the finder to the interpreter's, if this is a process of the box's Triton."""
    if folder := os.environ.get(VARIABLE):
        sys.meta_path.append(LastFinder(folder))


install()
