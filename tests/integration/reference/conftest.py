"""Boxes that the tests of a reference system share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sm.settings import Settings
from tests.integration.reference import official
from tests.support.boxes import RunningBox, running_box
from tests.support.multi_model_endpoint import MultiModelEndpoint
from trireme_tools.prepare.demo import prepare


@pytest.fixture(scope="session")
def single_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box in the official container's single mode. Its model-repository API needs a key."""
    with official.running_single_model_box(tmp_path_factory.mktemp("single")) as box:
        yield box


@pytest.fixture(scope="session")
def multi_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiModelEndpoint]:
    """The same box in multi-model mode."""
    with official.running_multi_model_box(tmp_path_factory.mktemp("multi_model")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def demo() -> Path:
    """The CPU repository of the three demo models, built if it is not there yet."""
    settings = Settings.read({})
    prepare(settings)
    return settings.cache / "repository" / "cpu"


@pytest.fixture(scope="session")
def demo_box(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box with the demo models; no test may break it."""
    with running_box(tmp_path_factory.mktemp("box"), demo, clients=()) as box:
        yield box
