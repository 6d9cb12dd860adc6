"""Batch transform of scripts without ``input_fn``, as the SageMaker SDK's local mode runs it.

The SDK starts the container with its variables, reads ``/execution-parameters``, splits the file into lines, sends
them by the strategy, and joins the responses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.support.aws import runtime_client
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.script_archives import write_script

SCRIPT = """
import numpy as np


def model_fn(model_dir):
    return lambda data: np.asarray(data).sum(axis=-1)
"""
#: The strategies as the SDK and the API spell them.
STRATEGIES = ("SingleRecord", "MultiRecord")


@pytest.fixture(scope="module")
def box(boxes: Boxes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box with the variables that the SDK sets for a ``Transformer`` without ``strategy=``."""
    with boxes.own(
        write_script(tmp_path_factory.mktemp("batch") / "model", SCRIPT),
        SAGEMAKER_BATCH="True",
        SAGEMAKER_MAX_CONCURRENT_TRANSFORMS="1",
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
    ) as box:
        yield box


def run_transform_job(
    box: RunningBox, text: str, content_type: str, accept: str = "", strategy: str = ""
) -> str:
    """The file that a transform job over ``text`` writes, split and assembled by lines."""
    parameters = requests.get(f"{box.url}/execution-parameters", timeout=10)
    assert parameters.status_code == 200
    job: dict[str, Any] = {"BatchStrategy": strategy} if strategy else {}
    job = {"BatchStrategy": "MultiRecord", "MaxPayloadInMB": 6, **parameters.json(), **job}
    assert job["BatchStrategy"] in STRATEGIES, f"the SDK ends: Invalid Batch Strategy: {job['BatchStrategy']}"
    assert job["MaxPayloadInMB"] > 0
    lines = text.splitlines(keepends=True)
    bodies = lines if job["BatchStrategy"] == "SingleRecord" else ["".join(lines)]
    runtime = runtime_client(box.url)
    accept_option = {"Accept": accept} if accept else {}
    output = ""
    for body in bodies:
        response = runtime.invoke_endpoint(
            EndpointName="local", Body=body.encode(), ContentType=content_type, **accept_option
        )
        output += response["Body"].read().decode() + "\n"
    return output


def test_without_a_strategy_none_is_announced(box: RunningBox) -> None:
    parameters = requests.get(f"{box.url}/execution-parameters", timeout=10).json()
    assert parameters == {"MaxConcurrentTransforms": 1, "MaxPayloadInMB": 6}


@pytest.mark.parametrize("strategy", ["", *STRATEGIES])
def test_json_lines_are_answered_line_by_line(box: RunningBox, strategy: str) -> None:
    output = run_transform_job(box, "[1, 2]\n[3, 4]\n[5, 6.5]\n", "application/jsonlines", strategy=strategy)
    assert output == ("3\n7\n11.5\n" if strategy == "SingleRecord" else "3.0\n7.0\n11.5\n")
