"""``sm tune`` on a real box with a small model: what it writes, what it leaves alone, and what may go wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sm.repository import config_files
from sm.tools.tune.sweep import Batching, Point, Setting, dumps, loads
from sm.tools.tune.tuning_box import setting_of
from tests.support.boxes import wait_until
from tests.support.tritons import HEAD, Model

#: Three instances do not load. It is killed with its Triton where somebody asks for that, once.
TWICE = Model(
    "time.sleep(0.01)\n"
    'order = pathlib.Path(self.folder) / "die"\n'
    "if order.exists():\n"
    "    order.unlink()\n"
    "    os.kill(os.getppid(), 9)\n"
    'return {"y": tensor(request, "x") * 2}',
    {"x": ("FP32", [1])},
    {"y": ("FP32", [1])},
    batch=4,
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
#: Added to what the model's own configuration says.
GROUP = "# Ours: one is enough.\ninstance_group [ { count: 1  kind: KIND_CPU } ]\n"
QUICK = ("--minutes", "0.6", "--instances", "3", "--callers", "8", "--delays", "1ms")
#: A tuning ends after its minutes, and then its box has to.
END_TIMEOUT_S = 120.0


@dataclass
class Workplace:
    """A repository with a model, its client, and a folder to run in."""

    folder: Path
    #: For what is temporary.
    temporary: Path

    @property
    def config(self) -> Path:
        return self.folder / "repository" / "twice" / "config.pbtxt"

    @property
    def report(self) -> Path:
        return self.folder / "tune-twice"

    def start(self, *words: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "TRIREME_MODEL_REPOSITORY": str(self.folder / "repository"),
            "TRIREME_CLIENTS": str(self.folder / "clients"),
            "TMPDIR": str(self.temporary),
            "MODEL_SERVER_WORKERS": "1",
        }
        return subprocess.Popen(
            [sys.executable, "-m", "sm.cli", "tune", *words],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=END_TIMEOUT_S)
        return process.returncode, out, err

    def left(self) -> list[str]:
        """Processes that work in this folder, and what is left in its temporary one."""
        return [*processes(str(self.folder)), *(path.name for path in self.temporary.iterdir())]


def processes(words: str) -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment, line = (path / "environ").read_bytes(), (path / "cmdline").read_bytes()
        except OSError:
            continue
        if words.encode() in environment and line:
            yield line.replace(b"\0", b" ").decode()


@pytest.fixture
def place(tmp_path: Path, short_path: Path) -> Workplace:
    made = Workplace(tmp_path, short_path)
    model = tmp_path / "repository" / "twice"
    TWICE.write(model)
    file = model / "1" / "model.py"
    file.write_text(file.read_text().replace("FOLDER", repr(str(tmp_path))))
    made.config.write_text(f"{made.config.read_text()}{GROUP}")
    client = tmp_path / "clients" / "twice"
    (client / "sample").mkdir(parents=True)
    (client / "client.py").write_text(CLIENT)
    (client / "sample" / "payload.json").write_text('{"text": "abc"}')
    (client / "sample" / "golden.json").write_text("6.0")
    return made


def recorded(*points: Point, **about: str) -> str:
    return dumps(points, **{"model": "twice", "client": "twice", **about})


def point(setting: Setting, rate: int, p99: float) -> Point:
    return Point(setting, 4, answers=rate * 10, seconds=10.0, p50=p99 / 2, p99=p99)


def test_settings_are_measured_and_one_that_does_not_load_is_a_row_that_failed(place: Workplace) -> None:
    before = place.config.read_text()
    status, _, err = place.run("twice", "--p99", "5s", *QUICK)
    assert status == 0, err
    assert place.config.read_text() == before, "without --apply nothing is written"
    assert not place.left()
    points, about = loads((place.report / "sweep.json").read_text())
    assert about == {"model": "twice", "client": "twice"}
    assert {each.setting.instances for each in points if each.failure} == {3}
    assert all("no room for three" in each.failure for each in points if each.failure)
    report = (place.report / "report.md").read_text()
    for words in (
        "**chosen**",
        "no room for three",
        "ml.m5.xlarge",
        "![answers a second against p99](plot.svg)",
    ):
        assert words in report
    assert (place.report / "plot.svg").read_text().startswith("<?xml")


def test_what_is_chosen_is_shown_first_and_written_when_that_is_asked_for(place: Workplace) -> None:
    place.config.chmod(0o640)
    before = place.config.read_text()
    best = Setting(2, Batching((4,), 1000))
    (place.folder / "sweep.json").write_text(
        recorded(point(Setting(1, Batching()), 50, 0.1), point(best, 90, 0.1))
    )
    status, diff, err = place.run("twice", "--p99", "1s", "--from", "sweep.json")
    assert status == 0, err
    assert place.config.read_text() == before
    status, again, _ = place.run("twice", "--p99", "1s", "--from", "sweep.json", "--apply")
    assert (status, again) == (0, diff)
    changed = [line for line in diff.splitlines() if line[0] in "+-"]
    assert changed[2:] == [
        "-dynamic_batching {}",
        "+dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 1000 }",
        "-instance_group [ { count: 1  kind: KIND_CPU } ]",
        "+instance_group [ { count: 2  kind: KIND_CPU } ]",
    ]
    assert "# Ours: one is enough.\n" in place.config.read_text()
    assert setting_of(config_files.read(place.config)) == best
    assert place.config.stat().st_mode & 0o777 == 0o640
    status, diff, err = place.run("twice", "--p99", "1s", "--from", "sweep.json", "--apply")
    assert (status, diff) == (0, "")
    assert "has the best setting already" in err


def test_a_bound_that_nothing_meets_is_said_with_the_nearest(place: Workplace) -> None:
    before = place.config.read_text()
    (place.folder / "sweep.json").write_text(recorded(point(Setting(1), 50, 0.3), point(Setting(2), 90, 0.2)))
    status, out, err = place.run("twice", "--p99", "1ms", "--from", "sweep.json", "--apply")
    assert (status, out) == (1, "")
    assert "No setting keeps a p99 of 1 ms. The nearest is 2 instances, no batching; 4 callers: 90.0" in err
    assert place.config.read_text() == before


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("{", "is no sweep.json of sm tune"), (recorded(model="other"), "is of 'other', not of 'twice'")],
)
def test_another_file_is_no_sweep(place: Workplace, text: str, sentence: str) -> None:
    (place.folder / "sweep.json").write_text(text)
    status, _, err = place.run("twice", "--from", "sweep.json")
    assert status == 1
    assert sentence in err


@pytest.mark.exhaustive
def test_a_triton_that_dies_in_the_middle_is_a_row_that_failed(place: Workplace) -> None:
    process = place.start("twice", "--p99", "2s", *QUICK)
    wait_until(lambda: (place.report / "sweep.json").exists(), END_TIMEOUT_S, "the first point")
    (place.folder / "die").touch()
    _, err = process.communicate(timeout=END_TIMEOUT_S)
    assert process.returncode == 0, err
    points, _ = loads((place.report / "sweep.json").read_text())
    assert any((point.failure or point.errors) and point.setting.instances != 3 for point in points)
    assert any(point.counts for point in points)
    assert not place.left()


@pytest.mark.parametrize(
    "early",
    [
        pytest.param(True, marks=pytest.mark.exhaustive, id="at the start"),
        pytest.param(False, id="measuring"),
    ],
)
def test_ctrl_c_keeps_what_is_there_and_leaves_nothing_else(place: Workplace, early: bool) -> None:
    before = place.config.read_text()
    process = place.start("twice", "--p99", "2s", "--minutes", "5", *QUICK[2:], "--apply")
    if early:
        wait_until(
            lambda: any("tritonserver" in line for line in processes(str(place.folder))), description="Triton"
        )
    else:
        wait_until(lambda: (place.report / "sweep.json").exists(), END_TIMEOUT_S, "the first point")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)  # somebody in a hurry
    _, err = process.communicate(timeout=END_TIMEOUT_S)
    assert process.returncode == int(early), err
    assert "interrupted" in err
    assert "Traceback" not in err
    assert place.config.read_text() == before
    assert not place.left()
    assert (place.report / "report.md").exists()


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ("clients/twice/sample/payload.json", "'twice' has no sample to send: write the payload"),
        ("repository/twice/1/model.py", "no model repository has twice"),
        ("clients/twice/client.py", "there is no client 'twice'"),
    ],
)
def test_what_is_missing_is_one_sentence_before_anything_starts(
    place: Workplace, broken: str, sentence: str
) -> None:
    path = place.folder / broken
    path.unlink()
    if broken.endswith("model.py"):
        path.parent.rmdir()
    status, out, err = place.run("twice", *QUICK)
    assert (status, out) == (1, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert not place.report.exists()


@pytest.mark.exhaustive
def test_a_wrong_answer_is_no_good_setting(place: Workplace) -> None:
    (place.folder / "clients" / "twice" / "sample" / "golden.json").write_text("70.0")
    status, _, err = place.run("twice", *QUICK, "--instances", "1", "--minutes", "0.3")
    assert status == 1
    assert "is not the golden one" in err
    assert json.loads((place.report / "sweep.json").read_text())["points"]
