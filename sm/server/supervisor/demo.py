"""The models of ``serve --demo`` and ``serve --examples``."""

from __future__ import annotations

from pathlib import Path

from sm.repository.cache import Cache
from sm.settings import Settings


def repository(settings: Settings, examples: bool = False) -> Path:
    """Return the CPU repository that ``sm prepare`` built."""
    return Cache(settings.cache).repositories / ("examples" if examples else "cpu")
