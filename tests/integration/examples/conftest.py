"""The repositories of the examples, as ``sm prepare --examples`` makes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sm.settings import Settings
from trireme_tools.prepare import example_repositories


@pytest.fixture(scope="session")
def example_repository() -> Callable[[str], Path]:
    """A function from an example's name to its repository in the cache, made now if it is missing."""
    settings = Settings.read({})
    return lambda name: example_repositories.prepare(settings, name)
