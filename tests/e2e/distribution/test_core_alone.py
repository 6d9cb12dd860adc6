"""The core's wheel alone, in a clean environment: it serves, and names the extensions for what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from sm import entry_points
from sm.settings import HERE
from tests.support.boxes import running_box, start_box
from tests.support.demo_box import demo
from tests.support.distribution import Installed, install_without_dependencies, run
from tests.support.task_models import write_text_model
from tests.support.tritons import MODELS

__all__ = ["demo"]  # a fixture
#: What a box without the extensions says.
REMEDY = "pip install 'trireme-serving[extensions]'"


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the core's wheel, and without the extensions and the tools."""
    folder = tmp_path_factory.mktemp("core")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder / "dist", HERE)
    return install_without_dependencies(folder / "home", *(folder / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def sm(core: Installed) -> str:
    return str(core.python.with_name("sm"))


def test_the_core_keeps_the_contract_of_the_platform(sm: str) -> None:
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract")
    environment = {**os.environ, "TRIREME_TEST_SM": sm}
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert "0 not asked, 0 has not, 0 broken" in done.stdout


def test_the_core_gives_the_golden_answers_of_the_articles_three_clients(
    core: Installed, sm: str, demo: Path, tmp_path: Path
) -> None:
    with running_box(tmp_path, demo, clients=(), sm=sm) as box:
        rows = [line.split()[:2] for line in core.sm("test", "--url", box.url).stdout.splitlines()]
        folder = Path(f"/proc/{box.workers()[0]}/cwd").readlink()
    assert rows == [["bert_base", "equal"], ["resnet", "equal"], ["yolov5", "equal"]]
    assert folder == tmp_path, "elsewhere it might have imported the checkout"


def write_task(folder: Path) -> dict[str, str]:
    """A model that a task.json serves."""
    MODELS["echo"].write(folder / "model" / "mood")
    (folder / "model" / "mood" / "task.json").write_text(json.dumps({"task": "text-classification"}))
    return {}


def write_script(folder: Path) -> dict[str, str]:
    """A model of the SageMaker toolkit."""
    MODELS["echo"].write(folder / "model" / "echo")
    code = folder / "model" / "code"
    code.mkdir()
    (code / "inference.py").write_text("def model_fn(model_dir):\n    return len\n")
    return {}


def name_checkpoint(folder: Path) -> dict[str, str]:
    """A model of Hugging Face's form."""
    write_text_model(folder / "mood", "text-classification", ("sad", "glad"))
    return {"HF_MODEL_ID": str(folder / "mood")}


def keep_payloads(folder: Path) -> dict[str, str]:
    """A box that is to keep what it is sent."""
    MODELS["echo"].write(folder / "model" / "echo")
    return {"TRIREME_CAPTURE": str(folder / "captures")}


def ask_for_metrics(folder: Path) -> dict[str, str]:
    """A box that should write metrics for CloudWatch."""
    MODELS["echo"].write(folder / "model" / "echo")
    return {"TRIREME_EMF": "on"}


@pytest.mark.parametrize("write", [write_task, write_script, name_checkpoint, keep_payloads, ask_for_metrics])
def test_a_start_names_the_extensions_for_what_the_core_lacks(
    sm: str, tmp_path: Path, write: Callable[[Path], dict[str, str]]
) -> None:
    variables = write(tmp_path)
    repository = tmp_path / "model" if (tmp_path / "model").is_dir() else None
    box = start_box(tmp_path, repository, clients=(), sm=sm, **variables)
    try:
        assert box.process.wait(60) == 1
    finally:
        box.stop()
    errors = [line for line in map(json.loads, box.log.read_text().splitlines()) if line["level"] == "error"]
    assert any(REMEDY in line["message"] for line in errors), errors


def test_a_box_that_cannot_send_traces_serves_and_names_what_can(sm: str, tmp_path: Path) -> None:
    MODELS["echo"].write(tmp_path / "model" / "echo")
    collector = "http://127.0.0.1:9"
    model = tmp_path / "model"
    with running_box(tmp_path, model, clients=(), sm=sm, OTEL_EXPORTER_OTLP_ENDPOINT=collector) as box:
        lines = [json.loads(line) for line in box.log.read_text().splitlines()]
        answer = requests.get(f"{box.url}/models", timeout=30)
    warnings = [line["message"] for line in lines if line["level"] == "warning"]
    assert any("pip install 'trireme-serving[extensions,otel]'" in warning for warning in warnings), warnings
    assert answer.status_code == 200


@pytest.mark.parametrize(("command", "extra"), [("build-model", "extensions"), ("push", "tools")])
def test_a_command_of_another_distribution_is_named(core: Installed, command: str, extra: str) -> None:
    done = core.sm(command, "pets")
    assert (done.returncode, f"trireme-serving[{extra}]" in done.stderr) == (1, True)


def test_an_option_of_the_tools_is_named(core: Installed, tmp_path: Path) -> None:
    MODELS["echo"].write(tmp_path / "echo")
    done = core.sm("inspect", tmp_path, "--graph")
    assert (done.returncode, "trireme-serving[tools]" in done.stderr) == (1, True)


def test_a_route_of_the_extensions_is_named(sm: str, tmp_path: Path) -> None:
    MODELS["echo"].write(tmp_path / "model" / "echo")
    with running_box(tmp_path, tmp_path / "model", clients=(), sm=sm) as box:
        forms = (path for form in entry_points.load("sm.forms") for row in form for path in row.paths)
        observers = (path.rule for row in entry_points.load("sm.observers") for path in row.paths)
        for method, path in (*(("POST", path) for path in forms), *(("GET", path) for path in observers)):
            answer = requests.request(
                method, box.url + path, json={"model": "echo", "input": "a"}, timeout=30
            )
            assert (answer.status_code, REMEDY in answer.text) == (404, True), answer.text
        other = requests.post(f"{box.url}/no/such/path", json={}, timeout=30)
    assert (other.status_code, REMEDY in other.text) == (404, False)
