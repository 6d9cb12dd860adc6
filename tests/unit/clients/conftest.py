"""The real weights of the box's clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.settings import Settings
from trireme_tools.prepare.demo import prepare


@pytest.fixture(scope="session")
def repository() -> Path:
    """The demo's repository, built as ``sm prepare`` builds it."""
    return prepare(Settings.read({}))
