"""``TRIREME_BUILD_ENGINES=missing``: plans are built before Triton starts, and /ping reports the progress.

There is no GPU here: trtexec and nvidia-smi on PATH are stand-ins, all else is real.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sm.repository.manifest import NAME, Manifest
from sm.repository.overlay import find_missing_plans, fits, merge, same_source
from sm.server.supervisor.preparation import progress
from tests.support.box_fixture import Boxes
from tests.support.boxes import wait_until
from tests.support.fake_gpu import fake_nvidia_smi
from tests.support.fake_trtexec import write_fake_trtexec
from tests.support.plans import plan_manifest

CONFIG = 'name: "tiny"\nbackend: "tensorrt"\nmax_batch_size: 8\n'


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository for a box with an A10G: a model with a plan for a T4, and a Python model."""
    fake_nvidia_smi(tmp_path / "bin", "NVIDIA A10G, 8.6", monkeypatch)
    folder = tmp_path / "models"
    (folder / "tiny" / "1").mkdir(parents=True)
    (folder / "tiny" / "config.pbtxt").write_text(CONFIG)
    (folder / "tiny" / "labels.txt").write_text("one\n")
    for name in ("model.plan", "model.onnx"):
        (folder / "tiny" / "1" / name).write_bytes(b"old")
    plan_manifest(model="tiny", seconds=420.0).write(folder / "tiny" / "1")
    (folder / "other" / "1").mkdir(parents=True)
    (folder / "other" / "config.pbtxt").write_text('name: "other"\nbackend: "python"\n')
    (folder / "other" / "1" / "model.py").write_text("")
    return folder


def build_variables(tmp_path: Path) -> dict[str, Any]:
    return {"TRIREME_BUILD_ENGINES": "missing", "TRIREME_CACHE": str(tmp_path / "cache")}


def test_a_plan_for_another_gpu_is_missing_and_other_models_are_not(repository: Path) -> None:
    assert find_missing_plans(repository) == [repository / "tiny" / "1"]


def test_a_plan_file_that_was_removed_is_missing(repository: Path) -> None:
    gpu = {"name": "NVIDIA A10G", "compute_capability": "8.6"}
    plan_manifest(model="tiny", gpu=gpu).write(repository / "tiny" / "1")
    assert find_missing_plans(repository) == []
    (repository / "tiny" / "1" / "model.plan").unlink()
    assert find_missing_plans(repository) == [repository / "tiny" / "1"]


def test_the_overlay_has_every_file_but_the_old_plan(repository: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    for _ in range(2):  # A second start does the same.
        merge(repository, merged, find_missing_plans(repository))
        assert (merged / "tiny" / "labels.txt").read_text() == "one\n"
        assert (merged / "tiny" / "config.pbtxt").read_text() == CONFIG
        assert [path.name for path in (merged / "tiny" / "1").iterdir()] == ["model.onnx"]
        assert (merged / "other").readlink() == repository / "other"
    assert (repository / "tiny" / "1" / "model.plan").read_bytes() == b"old"


def test_a_merge_keeps_a_plan_that_was_built_before(repository: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    merge(repository, merged, find_missing_plans(repository))
    (merged / "tiny" / "1" / "model.plan").write_bytes(b"new")
    merge(repository, merged, find_missing_plans(repository))
    assert (merged / "tiny" / "1" / "model.plan").read_bytes() == b"new"
    assert (repository / "tiny" / "1" / "model.plan").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("spent_s", "usual_s", "sentence"),
    [
        (190, 420.0, "building resnet: 3 of 7 min"),
        (190, None, "building resnet: 3 min so far"),
        (600, 420.0, "building resnet: 10 of 10 min"),
        (5, 20.0, "building resnet: 0 of 1 min"),
    ],
)
def test_progress_is_reported_in_minutes(spent_s: float, usual_s: float | None, sentence: str) -> None:
    assert progress("resnet", spent_s, usual_s) == sentence


def test_standin_ping_names_the_model_being_built_and_a_stop_ends_the_build(
    boxes: Boxes, repository: Path, tmp_path: Path
) -> None:
    trtexec_record = write_fake_trtexec(tmp_path / "bin", seconds=60)
    with boxes.own(repository, ready_within_s=0, **build_variables(tmp_path)) as box:
        wait_until(trtexec_record.exists)
        status, text = wait_until(lambda: said if "tiny" in (said := box.ping())[1] else None)
        assert (status, json.loads(text)["code"]) == (503, "not_ready")
        assert box.stop() == 0
    command = json.loads(trtexec_record.read_text())
    assert f"--onnx={repository / 'tiny' / '1' / 'model.onnx'}" in command
    assert "--optShapes=input:8x3x224x224" in command


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("out of memory", "tiny: "),
        ("no graph", "sm build-model tiny"),
        ("no cache", "plans cannot be built into"),
    ],
)
def test_standin_what_cannot_be_built_ends_the_start_with_its_reason(
    boxes: Boxes, repository: Path, tmp_path: Path, fault: str, named: str
) -> None:
    write_fake_trtexec(tmp_path / "bin", "out of memory")
    if fault == "no graph":
        (repository / "tiny" / "1" / "model.onnx").unlink()
    if fault == "no cache":
        (tmp_path / "cache").write_text("")
    assert named in boxes.failed_start(repository, **build_variables(tmp_path)).splitlines()[-1]


def test_standin_a_plan_that_was_built_fits_and_is_not_built_again(
    boxes: Boxes, repository: Path, tmp_path: Path
) -> None:
    """The wheel's Triton has no backend for plans, so the start ends there, after the build."""
    trtexec_record = write_fake_trtexec(tmp_path / "bin")
    for start in range(2):
        boxes.failed_start(repository, **build_variables(tmp_path))
        assert trtexec_record.exists() is (start == 0)
        trtexec_record.unlink(missing_ok=True)
    (built,) = (tmp_path / "cache" / "engines").glob("*/tiny/1")
    manifest = Manifest.read(built)
    assert manifest is not None
    assert manifest.gpu is not None
    assert (manifest.gpu.compute_capability, manifest.tool.version) == ("8.6", "10.13.3")
    assert (built / "model.plan").read_bytes() == b"a plan"
    assert fits(built)
    assert json.loads((repository / "tiny" / "1" / NAME).read_text())["gpu"]["name"] == "Tesla T4"


def test_a_plan_built_from_another_graph_is_not_used(repository: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    built.mkdir()
    plan_manifest(model="tiny", source={"name": "model.onnx", "sha256": "1" * 64}).write(built)
    assert not same_source(repository / "tiny" / "1", built)
    plan_manifest(model="tiny").write(built)
    assert same_source(repository / "tiny" / "1", built)
