"""Boxes whose models and clients stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox

StreamingBox = Callable[..., RunningBox]


@pytest.fixture
def streaming_box(boxes: Boxes) -> StreamingBox:
    """A function that takes settings and returns a box with one worker, and models and clients that stream."""
    return partial(boxes, ("counts",), ("streaming", "box", "platform"), SAGEMAKER_MODEL_SERVER_WORKERS="1")


@pytest.fixture
def box(streaming_box: StreamingBox) -> RunningBox:
    """A box that handles four callers at once."""
    return streaming_box(TRIREME_THREADS="4")


@pytest.fixture
def box_without_nginx(streaming_box: StreamingBox) -> RunningBox:
    """A box that gunicorn serves alone, with ten sessions."""
    settings = {"SAGEMAKER_ENABLE_STATEFUL_SESSIONS": "true", "TRIREME_MAX_SESSIONS": "10"}
    return streaming_box(TRIREME_NGINX="off", **settings)


@pytest.fixture(params=["box", "box_without_nginx"])
def either_box(request: pytest.FixtureRequest) -> RunningBox:
    found: RunningBox = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def box_with_limits(streaming_box: StreamingBox) -> RunningBox:
    """A box whose streams may last longer than other answers."""
    return streaming_box(SAGEMAKER_MODEL_SERVER_TIMEOUT="1", TRIREME_STREAM_TIMEOUT="5")
