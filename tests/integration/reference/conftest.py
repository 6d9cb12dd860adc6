"""Boxes that the tests of a reference system share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.reference import official
from tests.support.boxes import RunningBox
from tests.support.demo_box import box as demo_box
from tests.support.demo_box import demo
from tests.support.multi_model_endpoint import MultiModelEndpoint

__all__ = ["demo", "demo_box"]


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
