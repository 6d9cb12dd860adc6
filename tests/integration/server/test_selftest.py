"""``sm test`` on a real box: one that runs, and one that it starts itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm.settings import HERE, Settings
from sm.tools.build.prepare import prepare
from tests.support.boxes import RunningBox, free_port, running_box
from tests.support.containers import team_repository


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    settings = Settings.read({})
    prepare(settings)
    with running_box(tmp_path_factory.mktemp("box"), settings.cache / "repository" / "cpu") as started:
        yield started


def sm_test(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("SAGEMAKER", "TRIREME"))
    }
    return subprocess.run(
        [sys.executable, "-m", "sm.cli", "test", *words],
        env={**clean, **variables},
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_three_clients_give_their_golden_answers(box: RunningBox) -> None:
    done = sm_test("--url", box.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()][:3] == [
        ["bert_base", "equal"],
        ["resnet", "equal"],
        ["yolov5", "equal"],
    ]


def test_another_answer_is_shown_and_the_exit_status_is_1(box: RunningBox, tmp_path: Path) -> None:
    client = tmp_path / "resnet"
    shutil.copytree(HERE / "clients" / "resnet", client)
    golden = client / "sample" / "golden.json"
    golden.write_text(golden.read_text().replace("espresso", "tea"))
    done = sm_test("--url", box.url, TRIREME_CLIENTS=str(tmp_path))
    assert done.returncode == 1
    assert "DIFFERS: result[0] is" in done.stdout
    assert "tea" in done.stdout


def test_what_the_box_serves_and_was_not_tested_is_listed(box: RunningBox, tmp_path: Path) -> None:
    for name in ("resnet", "yolov5"):
        shutil.copytree(HERE / "clients" / name, tmp_path / name)
    shutil.rmtree(tmp_path / "yolov5" / "sample")
    done = sm_test("--url", box.url, TRIREME_CLIENTS=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    tested, *others = done.stdout.splitlines()
    assert tested.startswith("resnet     equal")
    not_here = "-  not tested: its client is not in TRIREME_CLIENTS and not in code/ of the repository"
    assert others == [
        *(f"{name:<9}  {not_here}" for name in ("bert_base", "fragile", "slow")),
        "yolov5     -  not tested: it has no sample/payload.json with a golden.json beside it",
    ]


def test_nobody_at_the_address_is_one_sentence() -> None:
    done = sm_test("--url", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert done.stderr.startswith("sm: no box answers at http://127.0.0.1:")


def test_a_box_of_its_own_is_started_and_stopped(tmp_path: Path) -> None:
    repository = team_repository(tmp_path / "model")
    team = repository / "code" / "team"
    (team / "sample").mkdir(parents=True)
    (repository / "code" / "team.py").rename(team / "client.py")
    (team / "sample" / "payload.json").write_text(json.dumps({"text": "four"}))
    (team / "sample" / "golden.json").write_text("[4.0, 4.0, 4.0]")
    done = sm_test(TRIREME_MODEL_REPOSITORY=str(repository))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "team       equal" in done.stdout
    assert "resnet     -  its model is not served" in done.stdout


def test_a_box_that_does_not_start_says_why(tmp_path: Path) -> None:
    repository = team_repository(tmp_path / "model", "import no_such_module\n")
    done = sm_test(TRIREME_MODEL_REPOSITORY=str(repository))
    assert done.returncode == 1
    assert "team.py: line 1: ModuleNotFoundError" in done.stderr
