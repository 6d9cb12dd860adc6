"""Boxes that the tests of a reference system share."""

from __future__ import annotations

import pytest

from tests.integration.reference import official
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.demo_box import box as demo_box
from tests.support.demo_box import demo
from tests.support.multi_model_endpoint import MultiModelEndpoint, shared_endpoint

__all__ = ["demo", "demo_box"]


@pytest.fixture
def single_box(boxes: Boxes) -> RunningBox:
    """A box in the official container's single mode. Its model-repository API needs a key."""
    return official.single_model_box(boxes)


@pytest.fixture
def multi_model(boxes: Boxes) -> MultiModelEndpoint:
    """The same box in multi-model mode."""
    return official.multi_model_box(boxes)


@pytest.fixture
def open_box(boxes: Boxes) -> MultiModelEndpoint:
    """A box in multi-model mode whose model routes need no key."""
    return shared_endpoint(boxes, SAGEMAKER_MODEL_SERVER_WORKERS="1")
