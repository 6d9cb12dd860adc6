"""The three boxes whose models and clients stream."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.box_fixture import Boxes
from tests.support.boxes import CLIENT_FOLDERS, RunningBox
from tests.support.tritons import MODELS, ParallelModel

#: With a negative rest, waits for ever after its first part.
PARALLEL = ParallelModel(
    """
for number in range(int(tensor(request, "count")[0])):
    seconds = float(tensor(request, "seconds")[0])
    while number and seconds < 0:
        time.sleep(0.1)
    time.sleep(max(0, seconds))
    yield {"number": np.array([number])}
""",
    MODELS["counts"].inputs,
    MODELS["counts"].outputs,
)


def streaming_box(boxes: Boxes, **settings: Any) -> RunningBox:
    """A box with one worker, and models and clients that stream, some as fast as they can."""
    return boxes(
        ("counts", "torrent", "stubborn", "echo"),
        ("streaming", "box", "platform", "torrents"),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        TRIREME_STREAM_STALL_SECONDS="3",
        TRIREME_DRAIN_SECONDS="600",  # longer than a test waits
        **settings,
    )


@pytest.fixture
def box(boxes: Boxes) -> RunningBox:
    """A box that handles four callers at once."""
    return streaming_box(boxes, TRIREME_THREADS="4")


@pytest.fixture
def box_without_nginx(boxes: Boxes) -> RunningBox:
    """A box that gunicorn serves alone."""
    return streaming_box(boxes, TRIREME_NGINX="off")


@pytest.fixture(params=["box", "box_without_nginx"])
def either_box(request: pytest.FixtureRequest) -> RunningBox:
    found: RunningBox = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def late_box(boxes: Boxes) -> RunningBox:
    """A box whose streams may last longer than other answers, which have a second."""
    numbers = (CLIENT_FOLDERS / "streaming" / "numbers" / "client.py").read_text()
    return boxes(
        {"parallel": PARALLEL, "counts": MODELS["counts"]},
        ({"parallel/client.py": numbers.replace('"counts"', '"parallel"')}, "streaming", "box"),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        SAGEMAKER_MODEL_SERVER_TIMEOUT="1",
        SAGEMAKER_TRITON_INFERENCE_TYPE="generate_stream",
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="parallel",
        TRIREME_STREAM_TIMEOUT="8",
        TRIREME_THREADS="16",
        TRIREME_RESTARTS="10",
    )
