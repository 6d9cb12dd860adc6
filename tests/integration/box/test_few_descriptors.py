"""A box that may open only a few files answers 429 instead of resetting connections."""

from __future__ import annotations

import pytest

from tests.support.box_fixture import Boxes
from tests.support.boxes import wait_until
from tests.support.load import Load
from tests.support.tritons import ECHO_BODY

LIMIT_FILES = "sh -c 'ulimit -n 128 && exec \"$@\"' sh"


@pytest.mark.exhaustive
def test_with_128_descriptors_200_callers_lose_no_request_and_ping_answers(boxes: Boxes) -> None:
    with boxes.own(
        ("echo",),
        command_prefix=LIMIT_FILES,
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
    ) as box:
        with Load(box.port, ECHO_BODY, retry_delay_s=0.2).start(200) as load:
            ping_statuses = [box.ping()[0] for _ in range(20)]
            wait_until(lambda: load.outcomes["200"] > 200, description="answers")
        assert ping_statuses == [200] * 20
        assert set(load.outcomes) <= {"200", "429"}, load.outcomes
        assert box.send(ECHO_BODY).status_code == 200
