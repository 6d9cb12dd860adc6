"""What Lambda gets: one package, in which everything of ours is found, and quickly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from bundle import bundle

from sm.settings import HERE

#: Of a cold start, Python's own included. Processor time, as the clock also shows what else the machine does.
COLD_START_PROCESSOR_S = 1.5
#: Only a client that needs one of these waits for it; the last two are the box's own.
LATER = ("cv2", "PIL", "tokenizers", "transformers", "onnx", "flask", "gunicorn")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that Chalice writes, made without a network: with no requirements but our own."""
    project = tmp_path_factory.mktemp("package") / "gateway"
    shutil.copytree(HERE / "gateway", project, ignore=shutil.ignore_patterns("__pycache__", "vendor"))
    (project / "requirements.txt").write_text("")
    bundle(project, HERE)
    completed = subprocess.run(
        [Path(sys.executable).with_name("chalice"), "package", "out"],
        cwd=project,
        env={**os.environ, "AWS_DEFAULT_REGION": "eu-west-1", "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return project / "out"


def test_the_package_runs_where_nothing_else_of_ours_is(package: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(package / "deployment.zip") as archive:
        archive.extractall(tmp_path)
    code = (
        # As in Lambda, without OpenCV.
        "import sys; sys.path.insert(0, sys.argv[1]); sys.modules['cv2'] = None; import app, sm.settings, json;"
        "import clients.resnet.client, clients.bert_base.client;"
        "from sm.plugins.loading import discover;"
        "folders = (sm.settings.HERE / 'clients',);"
        "print(json.dumps([sm.settings.__file__, app.__file__, [c.name for c in discover(folders)]]))"
    )
    completed = subprocess.run(
        [sys.executable, "-I", "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert completed.returncode == 0, completed.stderr
    settings, app, clients = json.loads(completed.stdout)
    assert settings == str(tmp_path / "sm" / "settings.py")
    assert app == str(tmp_path / "app.py")
    assert clients == ["bert_base", "resnet", "yolov5"]


def test_api_gateway_asks_for_a_key_on_every_route_but_health(package: Path) -> None:
    template = json.loads((package / "sam.json").read_text())
    paths = template["Resources"]["RestAPI"]["Properties"]["DefinitionBody"]["paths"]
    wants = {
        path: any("api_key" in row for row in verb.get("security", []))
        for path, verbs in paths.items()
        for name, verb in verbs.items()
        if name != "options"
    }
    keyed = ("/models", "/load_model/{model}", "/infer", "/infer/{model}")
    assert wants == {"/health": False, **dict.fromkeys(keyed, True)}


def test_lambda_ends_later_than_the_gateway_and_earlier_than_api_gateway() -> None:
    config = json.loads((HERE / "gateway" / ".chalice" / "config.json").read_text())
    assert 25 < config["lambda_timeout"] < 29


def test_a_cold_start_imports_no_more_than_it_needs() -> None:
    code = f"import sys, app; print([name for name in {LATER!r} if name in sys.modules])"
    code += "; import time; print(time.process_time())"
    completed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=HERE / "gateway",
        env={**os.environ, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        check=True,
    )
    imported, processor_seconds = completed.stdout.splitlines()
    assert imported == "[]"
    assert float(processor_seconds) < COLD_START_PROCESSOR_S
