"""The boxes that most tests share, and the demo models that one of them serves."""

from __future__ import annotations

import pytest

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.demo_box import box, cat, demo
from tests.support.multi_model_endpoint import MultiModelEndpoint, shared_endpoint

__all__ = ["box", "cat", "demo"]
#: More than the tests' faults cause.
RESTARTS = "50"
SMALL_MODELS = ("counts", "echo", "fixed", "raises", "words")


@pytest.fixture
def small_box(boxes: Boxes) -> RunningBox:
    """A box with small models, ``echo`` for requests that name none, a client, and 50 sessions."""
    return boxes(
        SMALL_MODELS,
        ("platform",),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
        SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true",
        TRIREME_MAX_SESSIONS="50",
    )


@pytest.fixture
def multi_model(boxes: Boxes) -> MultiModelEndpoint:
    """A box in multi-model mode."""
    return shared_endpoint(boxes, SAGEMAKER_MODEL_SERVER_WORKERS="2", TRIREME_RESTARTS=RESTARTS)
