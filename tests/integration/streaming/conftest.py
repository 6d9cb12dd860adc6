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
    return partial(boxes, ("counts",), ("streaming", "box"), SAGEMAKER_MODEL_SERVER_WORKERS="1")


@pytest.fixture
def box(streaming_box: StreamingBox) -> RunningBox:
    """A box that handles four callers at once."""
    return streaming_box(TRIREME_THREADS="4")


@pytest.fixture
def box_without_nginx(streaming_box: StreamingBox) -> RunningBox:
    return streaming_box(TRIREME_NGINX="off")


@pytest.fixture
def box_with_limits(streaming_box: StreamingBox) -> RunningBox:
    """A box that takes messages of at most 10,000 bytes, and whose streams may last longer than other answers."""
    return streaming_box(
        SAGEMAKER_MAX_REQUEST_SIZE="10000", SAGEMAKER_MODEL_SERVER_TIMEOUT="1", TRIREME_STREAM_TIMEOUT="5"
    )
