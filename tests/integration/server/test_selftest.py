"""``sm test`` against a running box, and with a box that it starts itself."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from sm.settings import HERE
from tests.support.boxes import RunningBox
from tests.support.containers import write_team_repository
from tests.support.demo_box import box, demo
from tests.support.sm_command import run_sm

__all__ = ["box", "demo"]


def run_sm_test(*options: str, folder: Path = HERE, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_sm("test", *options, cwd=folder, environment=variables)


def test_an_answer_that_differs_is_shown_and_the_exit_status_is_1(box: RunningBox, tmp_path: Path) -> None:
    client = tmp_path / "resnet"
    shutil.copytree(HERE / "clients" / "resnet", client)
    golden = client / "sample" / "golden.json"
    golden.write_text(golden.read_text().replace("espresso", "tea"))
    completed = run_sm_test("--url", box.url, TRIREME_CLIENTS=str(tmp_path))
    assert completed.returncode == 1
    assert "DIFFERS: result[0]" in completed.stdout


def test_served_models_that_were_not_tested_are_listed(box: RunningBox, tmp_path: Path) -> None:
    for name in ("resnet", "yolov5"):
        shutil.copytree(HERE / "clients" / name, tmp_path / name)
    shutil.rmtree(tmp_path / "yolov5" / "sample")
    completed = run_sm_test("--url", box.url, folder=tmp_path, TRIREME_CLIENTS=str(tmp_path))
    assert completed.returncode == 0, completed.stdout + completed.stderr
    rows = [line.split()[:2] for line in completed.stdout.splitlines()]
    others = [[name, "-"] for name in ("bert_base", "fragile", "slow", "words", "yolov5")]
    assert rows == [["resnet", "equal"], *others]


def test_without_a_url_it_starts_a_box_and_stops_it(tmp_path: Path) -> None:
    repository = write_team_repository(tmp_path / "model")
    client_folder = repository / "code" / "team"
    (client_folder / "sample").mkdir(parents=True)
    (repository / "code" / "team.py").rename(client_folder / "client.py")
    (client_folder / "sample" / "payload.json").write_text(json.dumps({"text": "four"}))
    (client_folder / "sample" / "golden.json").write_text("[4.0, 4.0, 4.0]")
    completed = run_sm_test(TRIREME_MODEL_REPOSITORY=str(repository))
    assert completed.returncode == 0, completed.stdout + completed.stderr
    rows = {tuple(line.split()[:2]) for line in completed.stdout.splitlines()}
    assert rows >= {("team", "equal"), ("resnet", "-")}
