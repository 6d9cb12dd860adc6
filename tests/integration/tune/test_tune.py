"""``sm tune`` on a real box with a small model: what it writes, what it keeps, and how it fails."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from sm.repository import models
from tests.support.boxes import processes_with, wait_until
from tests.support.sm_command import run_sm_here
from tests.support.tritons import HEAD, Model
from trireme_tools.tune.sweep import Batching, Point, Setting, dumps, loads
from trireme_tools.tune.tuning_box import setting_of

#: A model that fails to load with three instances. It kills its Triton once if there is a file named ``die``.
TWICE_MODEL = Model(
    "time.sleep(0.01)\n"
    'order = pathlib.Path(self.folder) / "die"\n'
    "if order.exists():\n"
    "    order.unlink()\n"
    "    os.kill(os.getppid(), 9)\n"
    'return {"y": tensor(request, "x") * 2}',
    {"x": ("FP32", [1])},
    {"y": ("FP32", [1])},
    max_batch_size=4,
    head=HEAD.replace("import os, time", "import json, os, pathlib, time")
    + '        count = int(json.loads(args["model_config"])["instance_group"][0]["count"])\n'
    + '        assert count != 3, "there is no room for three"\n'
    + "        self.folder = FOLDER\n",
)
CLIENT = """
import numpy as np

from sm.client import TensorClient, TextPayload


class Twice(TensorClient):
    model = "twice"
    payload = TextPayload

    def preprocess(self, payload):
        return {"x": np.array([len(payload.text)], np.float32)}

    def postprocess(self, outputs, payload):
        return float(outputs["y"][0])
"""
#: Appended to the model's configuration.
INSTANCE_GROUP = "# Ours: one is enough.\ninstance_group [ { count: 1  kind: KIND_CPU } ]\n"
QUICK_OPTIONS = ("--minutes", "0.6", "--instances", "3", "--callers", "8", "--delays", "1ms")
#: For a tuning to end after its minutes, and then its box.
END_TIMEOUT_S = 120.0


@dataclass
class Workplace:
    """A folder with a model repository and its client, in which ``sm tune`` is run, and its TMPDIR."""

    folder: Path
    temporary_folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "repository" / "twice" / "config.pbtxt"

    @property
    def report(self) -> Path:
        return self.folder / "tune-twice"

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command that measures nothing."""
        done = run_sm_here("tune", "twice", *arguments, cwd=self.folder)
        return done.returncode, done.stdout, done.stderr

    def run_from(self, sweep: str, p99: str, *arguments: str) -> tuple[int, str, str]:
        """Choose from a recorded sweep."""
        (self.folder / "sweep.json").write_text(sweep)
        return self.run("--p99", p99, "--from", "sweep.json", *arguments)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "sm.cli", "tune", "twice", *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def points(self) -> list[Point]:
        points, metadata = loads((self.report / "sweep.json").read_text())
        assert metadata == {"model": "twice", "client": "twice"}
        return list(points)

    def leftovers(self) -> list[str]:
        """Processes that still use this folder, and files left in its TMPDIR."""
        return [*processes_with(str(self.folder)), *(path.name for path in self.temporary_folder.iterdir())]


@pytest.fixture
def workplace(tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    workplace = Workplace(tmp_path, short_path)
    monkeypatch.setenv("TRIREME_MODEL_REPOSITORY", str(tmp_path / "repository"))
    monkeypatch.setenv("TMPDIR", str(short_path))
    monkeypatch.setenv("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "other")
    monkeypatch.setenv("MODEL_SERVER_WORKERS", "1")
    model = tmp_path / "repository" / "twice"
    TWICE_MODEL.write(model)
    file = model / "1" / "model.py"
    file.write_text(file.read_text().replace("FOLDER", repr(str(tmp_path))))
    workplace.config.write_text(f"{workplace.config.read_text()}{INSTANCE_GROUP}")
    client = tmp_path / "clients" / "twice"
    (client / "sample").mkdir(parents=True)
    (client / "client.py").write_text(CLIENT)
    (client / "sample" / "payload.json").write_text('{"text": "abc"}')
    (client / "sample" / "golden.json").write_text("6.0")
    return workplace


def sweep_json(*points: Point, **metadata: str) -> str:
    return dumps(points, **{"model": "twice", "client": "twice", **metadata})


def make_point(setting: Setting, rate: int, p99: float) -> Point:
    return Point(setting, 4, answers=rate * 10, seconds=10.0, p50=p99 / 2, p99=p99)


@pytest.mark.exhaustive
def test_settings_are_measured_and_those_that_fail_to_load_or_end_triton_are_reported(
    workplace: Workplace,
) -> None:
    config_before = workplace.config.read_text()
    other = workplace.folder / "clients" / "other" / "client.py"
    other.parent.mkdir()
    other.write_text(CLIENT.replace('"twice"', '"other"'))
    process = workplace.start("--p99", "5s", *QUICK_OPTIONS, "--callers", "1,8")
    wait_until(lambda: (workplace.report / "sweep.json").exists(), END_TIMEOUT_S, "the first point")
    (workplace.folder / "die").touch()
    _, err = process.communicate(timeout=END_TIMEOUT_S)
    assert process.returncode == 0, err
    assert workplace.config.read_text() == config_before, "without --apply nothing is written"
    assert not workplace.leftovers()
    points = workplace.points()
    failed = [point.setting.instances for point in points if point.failure]
    assert 3 in failed
    assert len(failed) - failed.count(3) == 1
    assert any(point.is_valid for point in points)
    report = (workplace.report / "report.md").read_text()
    assert all(text in report for text in ("**chosen**", "ml.m5.xlarge", "plot.svg"))
    assert (workplace.report / "plot.svg").is_file()


def test_the_best_setting_is_shown_as_a_diff_and_written_only_with_apply(workplace: Workplace) -> None:
    workplace.config.chmod(0o640)
    config_before = workplace.config.read_text()
    best = Setting(2, Batching((4,), 1000))
    sweep = sweep_json(make_point(Setting(1, Batching()), 50, 0.1), make_point(best, 90, 0.1))
    status, diff, err = workplace.run_from(sweep, "1s")
    assert status == 0, err
    assert workplace.config.read_text() == config_before
    assert workplace.run_from(sweep, "1s", "--apply")[:2] == (0, diff)
    changed = [line for line in diff.splitlines() if line[0] in "+-"]
    assert changed[2:] == [
        "-dynamic_batching {}",
        "+dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 1000 }",
        "-instance_group [ { count: 1  kind: KIND_CPU } ]",
        "+instance_group [ { count: 2  kind: KIND_CPU } ]",
    ]
    assert "# Ours: one is enough.\n" in workplace.config.read_text()
    assert setting_of(models.read_config(workplace.config)) == best
    assert workplace.config.stat().st_mode & 0o777 == 0o640
    assert workplace.run_from(sweep, "1s", "--apply")[:2] == (0, "")


@pytest.mark.parametrize(
    ("sweep", "named"),
    [
        # A bound that no setting meets is reported with the nearest.
        (sweep_json(make_point(Setting(1), 50, 0.3), make_point(Setting(2), 90, 0.2)), "2 instances"),
        ("{", "sweep.json"),
        (sweep_json(model="other"), "'other'"),
    ],
)
def test_a_sweep_without_a_setting_for_the_model_changes_nothing(
    workplace: Workplace, sweep: str, named: str
) -> None:
    config_before = workplace.config.read_text()
    status, out, err = workplace.run_from(sweep, "1ms", "--apply")
    assert (status, out, named in err) == (1, "", True)
    assert workplace.config.read_text() == config_before


@pytest.mark.exhaustive
@pytest.mark.parametrize("at_the_start", [True, False])
def test_ctrl_c_keeps_the_report_and_the_configuration_and_ends_every_process(
    workplace: Workplace, at_the_start: bool
) -> None:
    config_before = workplace.config.read_text()
    options = ("--p99", "2s", "--minutes", "5", *QUICK_OPTIONS[2:], "--callers", "1,8", "--apply")
    process = workplace.start(*options)

    def has_begun() -> bool:
        if at_the_start:
            return any("tritonserver" in line for line in processes_with(str(workplace.folder)))
        return (workplace.report / "sweep.json").exists()

    wait_until(has_begun, END_TIMEOUT_S, "Triton, or the first point")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)  # Ctrl-C a second time, if it has not ended
    _, err = process.communicate(timeout=END_TIMEOUT_S)
    assert (process.returncode, "Traceback" in err) == (int(at_the_start), False), err
    assert workplace.config.read_text() == config_before
    assert not workplace.leftovers()
    assert (workplace.report / "report.md").exists()


@pytest.mark.parametrize(
    ("missing_file", "named"),
    [
        ("clients/twice/sample/payload.json", "payload.json"),
        ("repository/twice/1/model.py", "twice"),
        ("clients/twice/client.py", "'twice'"),
    ],
)
def test_a_missing_file_is_reported_in_one_sentence_before_anything_starts(
    workplace: Workplace, missing_file: str, named: str
) -> None:
    path = workplace.folder / missing_file
    path.unlink()
    if missing_file.endswith("model.py"):
        path.parent.rmdir()
    status, out, err = workplace.run(*QUICK_OPTIONS)
    assert (status, out, len(err.splitlines()), named in err) == (1, "", 1, True)
    assert not workplace.report.exists()


@pytest.mark.exhaustive
def test_a_setting_with_wrong_answers_is_not_recommended(workplace: Workplace) -> None:
    (workplace.folder / "clients" / "twice" / "sample" / "golden.json").write_text("70.0")
    process = workplace.start(*QUICK_OPTIONS, "--instances", "1", "--minutes", "0.3")
    _, err = process.communicate(timeout=END_TIMEOUT_S)
    assert (process.returncode, bool(workplace.points())) == (1, True), err
