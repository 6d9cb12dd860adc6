"""The gateway in Lambda: its package is complete, protects its routes and imports little, and time is Lambda's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from app import app
from bundle import bundle
from chalice.app import Request
from chalicelib.front import DEADLINE_MARGIN_S, available_seconds

from sm.settings import HERE
from tests.support.gateways import api_gateway_event

#: Imports, as in Lambda without OpenCV, what the package is for, and prints from where and what else that imports.
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
sys.modules["cv2"] = None
import app, sm.settings
early = [name for name in ("PIL", "tokenizers", "transformers", "onnx", "flask", "gunicorn") if name in sys.modules]
import clients.resnet.client, clients.bert_base.client
from sm.plugins.sources import discover
names = [client.name for client in discover((sm.settings.HERE / "clients",))]
print(json.dumps([sm.settings.__file__, app.__file__, early, names]))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that Chalice writes. Without other requirements than our own it needs no network."""
    project = tmp_path_factory.mktemp("package") / "gateway"
    shutil.copytree(HERE / "gateway", project, ignore=shutil.ignore_patterns("__pycache__", "vendor"))
    (project / "requirements.txt").write_text("")
    bundle(project, HERE)
    environment = {**os.environ, "AWS_DEFAULT_REGION": "eu-west-1", "PYTHONPATH": str(HERE)}
    command = [str(Path(sys.executable).with_name("chalice")), "package", "out"]
    subprocess.run(command, cwd=project, env=environment, capture_output=True, check=True)
    return project / "out"


@pytest.mark.exhaustive
def test_the_package_runs_without_anything_else_of_ours_and_starts_without_client_libraries(
    package: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(package / "deployment.zip") as archive:
        archive.extractall(tmp_path)
    command = [sys.executable, "-I", "-c", PROGRAM, str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    places = [str(tmp_path / "sm" / "settings.py"), str(tmp_path / "app.py")]
    assert json.loads(printed) == [*places, [], ["bert_base", "resnet", "yolov5"]]


def test_api_gateway_requires_a_key_on_every_route_but_health(package: Path) -> None:
    template = json.loads((package / "sam.json").read_text())
    paths = template["Resources"]["RestAPI"]["Properties"]["DefinitionBody"]["paths"]
    needs_key = {
        path: any("api_key" in row for row in verb.get("security", []))
        for path, verbs in paths.items()
        for name, verb in verbs.items()
        if name != "options"
    }
    paths_with_key = ("/models", "/load_model/{model}", "/infer", "/infer/{model}")
    assert needs_key == {"/health": False, **dict.fromkeys(paths_with_key, True)}


def test_lambdas_timeout_lies_between_the_gateways_and_api_gateways() -> None:
    config = json.loads((HERE / "gateway" / ".chalice" / "config.json").read_text())
    assert 25 < config["lambda_timeout"] < 29


def lambda_context(milliseconds: int) -> object:
    return SimpleNamespace(aws_request_id="of-lambda", get_remaining_time_in_millis=lambda: milliseconds)


@pytest.mark.parametrize(
    ("context", "expected_s"),
    [
        (lambda_context(28_000), 25.0),
        (lambda_context(3_000), 3 - DEADLINE_MARGIN_S),
        (lambda_context(500), 0.0),
        (object(), 25.0),
    ],
)
def test_a_request_never_gets_more_time_than_lambda_has(context: object, expected_s: float) -> None:
    request = Request(api_gateway_event("GET", "/models"), context)
    assert available_seconds(request, 25.0) == pytest.approx(expected_s)


def test_an_error_has_lambdas_request_id() -> None:
    response = app(api_gateway_event("DELETE", "/models"), lambda_context(1000))
    assert (response["statusCode"], json.loads(response["body"])["request_id"]) == (405, "of-lambda")
