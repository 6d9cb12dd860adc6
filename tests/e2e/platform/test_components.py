"""An inference component on the played platform: its copies are real boxes."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.support.aws import aws_client
from tests.support.played_aws import ROLE, played_aws
from tests.support.sm_command import RunSm

#: Of another account, whose registry is not asked.
IMAGE = "111122223333.dkr.ecr.eu-west-1.amazonaws.com/trireme:played"
CONFIG = """backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
"""
MODEL = """import triton_python_backend_utils as pb
class TritonPythonModel:
    def execute(self, requests):
        answers = [pb.get_input_tensor_by_name(request, "IN").as_numpy() * 2 for request in requests]
        return [pb.InferenceResponse([pb.Tensor("OUT", answer)]) for answer in answers]
"""


@pytest.mark.exhaustive
def test_a_component_answers_ends_and_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sm: RunSm
) -> None:
    version = tmp_path / "repository/double/1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "clients").mkdir()
    body = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [21]}]}
    (tmp_path / "request.json").write_text(json.dumps(body))

    with played_aws(tmp_path / "boxes") as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
        monkeypatch.setenv("TRIREME_CLIENTS", str(tmp_path / "clients"))
        deploy = (
            *("deploy", "double", "--component", "--memory", "1024", "--image", IMAGE, "--role", ROLE),
            *("--instance-type", "ml.c5.xlarge", "--env", "SAGEMAKER_MODEL_SERVER_WORKERS=1"),
            *("--model-data", str(version.parents[1])),
        )
        request = ("--json", str(tmp_path / "request.json"), "--raw")
        invoke = ("invoke", "double", "--component", "double", *request)
        assert sm(*deploy).status == 0
        answered = sm(*invoke)
        assert answered.status == 0 and json.loads(answered.out)["outputs"][0]["data"] == [42]
        assert sm("invoke", "double", *request).status == 1, "the endpoint itself has no model"
        assert sm(*deploy, "--copies", "0").status == 0
        assert sm(*invoke).status == 1
        until = datetime.now(timezone.utc) + timedelta(minutes=1)
        counted = aws_client("cloudwatch", aws.url).get_metric_statistics(
            Namespace="AWS/SageMaker",
            MetricName="NoCapacityInvocationFailures",
            Dimensions=[{"Name": "InferenceComponentName", "Value": "double"}],
            StartTime=until - timedelta(hours=1),
            EndTime=until,
            Period=3600,
            Statistics=["Sum"],
        )
        assert sum(point["Sum"] for point in counted["Datapoints"]) == 1
        assert sm(*deploy, "--copies", "1").status == 0
        assert json.loads(sm(*invoke).out)["outputs"][0]["data"] == [42]
        assert sm("delete", "double", "--yes").status == 0
        assert aws.components == {} and aws.copies == {} and aws.endpoints == {}
