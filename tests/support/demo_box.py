"""Fixtures: the box that most tests share, the demo models that it serves, and a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.settings import HERE, Settings
from tests.support.box_fixture import Boxes
from tests.support.boxes import CLIENT_FOLDERS, RunningBox
from trireme_tools.prepare.demo import prepare


@pytest.fixture(scope="session")
def demo() -> Path:
    """The CPU repository of the three demo models; built if it does not exist."""
    settings = Settings.read({})
    prepare(settings)
    return settings.cache / "repository" / "cpu"


@pytest.fixture
def box(boxes: Boxes, demo: Path) -> RunningBox:
    """A box with the demo models, the test clients, and one that streams."""
    words = (CLIENT_FOLDERS / "streaming" / "words" / "client.py").read_text()
    return boxes(demo, ("box", {"words/client.py": words}))


@pytest.fixture(scope="session")
def cat() -> bytes:
    """scikit-image's Chelsea, a PNG."""
    return (HERE / "clients" / "resnet" / "sample" / "cat.png").read_bytes()
