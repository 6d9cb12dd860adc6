"""A box that may open few files turns callers away instead of resetting their connections."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.boxes import log_of_failed_start, running_box, wait_until
from tests.support.load import Load
from tests.support.tritons import MODELS

ROWS = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}).encode()
FEW = "sh -c 'ulimit -n {files} && exec \"$@\"' sh"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    MODELS["echo"].write(tmp_path / "model" / "echo")
    return tmp_path / "model"


def test_200_callers_of_a_box_with_128_descriptors_lose_no_request_and_ping_answers(
    tmp_path: Path, repository: Path
) -> None:
    through = FEW.format(files=128)
    with running_box(
        tmp_path,
        repository,
        clients=(),
        command_prefix=through,
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
    ) as box:
        assert "a process may open 128 files, too few" in box.wait_for_log("at once: 32 requests")
        with Load(box.port, ROWS, retry_delay_s=0.2).start(200) as load:
            pings = [box.ping()[0] for _ in range(20)]
            wait_until(lambda: load.outcomes["200"] > 200, description="answers")
        assert pings == [200] * 20
        assert set(load.outcomes) <= {"200", "429"}, load.outcomes
        assert box.send(ROWS).status_code == 200


def test_a_box_with_64_descriptors_does_not_start_and_says_why(tmp_path: Path, repository: Path) -> None:
    assert "the box needs 96" in log_of_failed_start(
        tmp_path, repository, command_prefix=FEW.format(files=64)
    )
