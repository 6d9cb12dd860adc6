"""Endpoints on the played platform, whose instances and copies are real boxes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE, Settings
from tests.support.played_aws import ROLE, played_aws
from tests.support.sm_command import RunSm
from tests.support.tritons import MODELS
from trireme_tools.prepare.demo import prepare

pytestmark = pytest.mark.exhaustive
#: Of another account, whose registry is not asked.
IMAGE = "111122223333.dkr.ecr.eu-west-1.amazonaws.com/trireme:played"


def test_the_documented_script_creates_invokes_updates_and_deletes_an_endpoint() -> None:
    prepare(Settings.read({}))
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.played_aws", "examples/endpoint-life.sh"],
        cwd=HERE,
        env={**os.environ, "IMAGE": IMAGE},
        capture_output=True,
        text=True,
        timeout=280,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    assert output.count("equal (") == 6, output
    for shown in ("Egyptian cat", "capital of France", "971.52", "676.80"):
        assert shown in output, output


def test_a_component_answers_ends_and_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sm: RunSm
) -> None:
    MODELS["echo"].write(tmp_path / "repository" / "echo")
    (tmp_path / "clients").mkdir()
    numbers = [21.0, 22.0, 23.0]
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": numbers}]}
    (tmp_path / "request.json").write_text(json.dumps(body))
    request = ("invoke", "echo", "--json", str(tmp_path / "request.json"), "--raw")
    deploy = (
        *("deploy", "echo", "--component", "--memory", "1024", "--image", IMAGE, "--role", ROLE),
        *("--instance-type", "ml.c5.xlarge", "--env", "SAGEMAKER_MODEL_SERVER_WORKERS=1"),
        *("--model-data", str(tmp_path / "repository")),
    )
    with played_aws(tmp_path / "boxes") as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
        monkeypatch.setenv("TRIREME_CLIENTS", str(tmp_path / "clients"))

        def answer() -> object:
            invoked = sm(*request, "--component", "echo")
            return json.loads(invoked.out)["outputs"][0]["data"] if invoked.status == 0 else None

        assert sm(*deploy).status == 0
        assert answer() == numbers
        assert sm(*request).status == 1, "the endpoint itself has no model"
        assert sm(*deploy, "--copies", "0").status == 0
        assert answer() is None
        (counted,) = aws.client("cloudwatch").list_metrics(Namespace="AWS/SageMaker")["Metrics"]
        assert counted["MetricName"] == "NoCapacityInvocationFailures"
        assert counted["Dimensions"] == [{"Name": "InferenceComponentName", "Value": "echo"}]
        assert sm(*deploy, "--copies", "1").status == 0
        assert answer() == numbers
        assert sm("delete", "echo", "--yes").status == 0
        assert aws.components == {} and aws.copies == {} and aws.endpoints == {}
