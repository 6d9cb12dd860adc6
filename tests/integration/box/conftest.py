"""The boxes that most tests share, and the demo models that one of them serves."""

from __future__ import annotations

import pytest

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.demo_box import box, cat, demo

__all__ = ["box", "cat", "demo"]
SMALL_MODELS = ("counts", "echo", "fixed", "raises", "words")


@pytest.fixture
def small_box(boxes: Boxes) -> RunningBox:
    """A box with small models, ``echo`` for requests that name none, and a client."""
    return boxes(SMALL_MODELS, ("platform",), SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo")
