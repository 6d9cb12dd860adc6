"""Endpoints on the played platform, whose instances and copies are real boxes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE, Settings
from tests.e2e.push.checkout import LAPTOP_TOOLS
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


@pytest.mark.timeout(900)  # it builds the whole image, without a layer from before
def test_from_a_clone_without_an_engine_to_three_answers_and_back_to_nothing(tmp_path: Path) -> None:
    """The script runs in a clone, where there is neither Docker nor Podman; the account's builds have them."""
    if not (shutil.which("podman") and shutil.which("docker-registry")):
        pytest.skip("no Podman or docker-registry here, with which the account's builds are played")
    prepare(Settings.read({}))
    clone, tools = tmp_path / "clone", tmp_path / "tools"
    subprocess.run(["git", "clone", "--quiet", HERE, clone], check=True)
    tools.mkdir()
    for name in (*LAPTOP_TOOLS, "diff", "grep", "head", "mktemp", "rm"):
        (tools / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
    for name in ("aws", "python"):
        (tools / name).symlink_to(Path(sys.executable).with_name(name))
    laptop = (
        *("env", f"PATH={tools}", f"PYTHON={sys.executable}"),
        str(clone / "examples" / "from-a-laptop.sh"),
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.played_aws", *laptop],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=860,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-6000:]
    for shown in ("Egyptian cat", "capital of France", "0.5558", "nothing is left"):
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
