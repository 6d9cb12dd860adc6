"""The examples as ``sm prepare --examples`` makes them, each alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sm.build import examples
from sm.settings import Settings


@pytest.fixture(scope="session")
def example_repository() -> Callable[[str], Path]:
    """By an example's name: its repository in the cache, made now if it is not there."""
    settings = Settings.read({})
    return lambda name: examples.prepare(settings, name)
