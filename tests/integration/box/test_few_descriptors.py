"""A box that may open only a few files answers 429 instead of resetting connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.boxes import running_box, wait_until
from tests.support.load import Load
from tests.support.tritons import ECHO_BODY, MODELS

LIMIT_FILES = "sh -c 'ulimit -n {files} && exec \"$@\"' sh"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    MODELS["echo"].write(tmp_path / "model" / "echo")
    return tmp_path / "model"


@pytest.mark.exhaustive
def test_with_128_descriptors_200_callers_lose_no_request_and_ping_answers(
    tmp_path: Path, repository: Path
) -> None:
    command_prefix = LIMIT_FILES.format(files=128)
    with running_box(
        tmp_path,
        repository,
        clients=(),
        command_prefix=command_prefix,
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
    ) as box:
        assert "a process may open 128 files, too few" in box.wait_for_log("at once: 32 requests")
        with Load(box.port, ECHO_BODY, retry_delay_s=0.2).start(200) as load:
            ping_statuses = [box.ping()[0] for _ in range(20)]
            wait_until(lambda: load.outcomes["200"] > 200, description="answers")
        assert ping_statuses == [200] * 20
        assert set(load.outcomes) <= {"200", "429"}, load.outcomes
        assert box.send(ECHO_BODY).status_code == 200
