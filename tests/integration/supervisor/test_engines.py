"""``TRIREME_BUILD_ENGINES=missing``: plans are built before Triton starts, and /ping reports the progress.

There is no GPU here: trtexec and nvidia-smi on PATH are stand-ins, all else is real.
"""

from __future__ import annotations

import json
import shutil
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


def test_the_overlay_has_every_file_but_the_plan_for_another_gpu(repository: Path, tmp_path: Path) -> None:
    missing, merged = find_missing_plans(repository), tmp_path / "merged"
    assert missing == [repository / "tiny" / "1"]
    merge(repository, merged, missing)
    assert (merged / "tiny" / "labels.txt").read_text() == "one\n"
    assert (merged / "tiny" / "config.pbtxt").read_text() == CONFIG
    assert [path.name for path in (merged / "tiny" / "1").iterdir()] == ["model.onnx"]
    assert (merged / "other").readlink() == repository / "other"
    # A second start keeps a plan that was built meanwhile.
    (merged / "tiny" / "1" / "model.plan").write_bytes(b"new")
    merge(repository, merged, missing)
    assert (merged / "tiny" / "1" / "model.plan").read_bytes() == b"new"
    assert (repository / "tiny" / "1" / "model.plan").read_bytes() == b"old"


def test_standin_missing_plans_are_built_before_triton_starts(
    boxes: Boxes, repository: Path, tmp_path: Path
) -> None:
    """/ping names the model meanwhile, and a stop ends the build."""
    variables: Any = {"TRIREME_BUILD_ENGINES": "missing", "TRIREME_CACHE": str(tmp_path / "cache")}
    shutil.copytree(repository / "tiny", repository / "zebra")
    (repository / "zebra" / "config.pbtxt").write_text(CONFIG.replace("tiny", "zebra"))
    trtexec_record = write_fake_trtexec(tmp_path / "bin", slow="zebra")
    with boxes.own(repository, ready_within_s=0, **variables) as box:
        status, text = wait_until(lambda: said if "zebra" in (said := box.ping())[1] else None)
        assert (status, json.loads(text)["code"]) == (503, "not_ready")
        wait_until(lambda: "zebra" in trtexec_record.read_text(), description="the second build")
        assert box.stop() == 0
    command = json.loads(trtexec_record.read_text())
    assert f"--onnx={repository / 'zebra' / '1' / 'model.onnx'}" in command
    assert "--optShapes=input:8x3x224x224" in command
    (built,) = (tmp_path / "cache" / "engines").glob("*/tiny/1")
    manifest = Manifest.read(built)
    assert manifest is not None
    assert manifest.gpu is not None
    assert (manifest.gpu.compute_capability, manifest.tool.version) == ("8.6", "10.13.3")
    assert (built / "model.plan").read_bytes() == b"a plan"
    assert fits(built), "it is not built again"
    assert json.loads((repository / "tiny" / "1" / NAME).read_text())["gpu"]["name"] == "Tesla T4"


def test_a_plan_built_from_another_graph_is_not_used(repository: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    built.mkdir()
    plan_manifest(model="tiny", source={"name": "model.onnx", "sha256": "1" * 64}).write(built)
    assert not same_source(repository / "tiny" / "1", built)
    plan_manifest(model="tiny").write(built)
    assert same_source(repository / "tiny" / "1", built)


@pytest.mark.parametrize(
    ("last_seconds", "text"), [(420.0, "building tiny: 3 of 7 min"), (None, "building tiny: 3 min so far")]
)
def test_ping_has_the_minutes_of_a_build_and_of_the_last_one(last_seconds: float | None, text: str) -> None:
    assert progress("tiny", 190, last_seconds) == text
