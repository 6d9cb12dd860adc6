"""Boxes that the tests of one reference system share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.box.running import RunningBox
from tests.reference import official


@pytest.fixture(scope="session")
def single_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """The official container's single mode, its model-repository API restricted."""
    with official.single(tmp_path_factory.mktemp("single")) as box:
        yield box


@pytest.fixture(scope="session")
def multi_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[official.MultiModel]:
    """The same in multi-model mode."""
    with official.multi_model(tmp_path_factory.mktemp("multi_model")) as started:
        yield started
