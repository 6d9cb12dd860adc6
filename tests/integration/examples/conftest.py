"""The examples as ``sm prepare --examples`` makes them, each alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sm.settings import Settings
from sm.tools.build import example_repositories


@pytest.fixture(scope="session")
def example_repository() -> Callable[[str], Path]:
    """By an example's name: its repository in the cache, made now if it is not there."""
    settings = Settings.read({})
    return lambda name: example_repositories.prepare(settings, name)
