"""What Triton reads in place of the repository."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

import pytest

from sm.repository import models, overlay
from sm.repository.machine import Machine


@pytest.mark.parametrize("gpu", [False, True])
def test_a_model_for_a_gpu_runs_on_the_cpu_only_where_there_is_none(tmp_path: Path, gpu: bool) -> None:
    model = tmp_path / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "python" instance_group [{ kind: KIND_GPU }]')
    served = overlay.for_triton(model.parent, tmp_path / "overlay", Machine(gpu=gpu))
    assert models.Model.read(served / "m").wants_gpu is gpu
    assert models.Model.read(model).wants_gpu


def test_triton_reads_the_teams_texts_without_a_byte_order_mark(tmp_path: Path) -> None:
    model = tmp_path / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_bytes(BOM_UTF8 + b'backend: "python"')
    (model / "labels.txt").write_bytes(BOM_UTF8 + b"sad\nglad\n")
    (model / "plain.txt").write_bytes(b"sad\n")
    served = overlay.for_triton(model.parent, tmp_path / "overlay", Machine(gpu=False)) / "m"
    assert models.read_config(model / "config.pbtxt").backend == "python"
    assert (served / "config.pbtxt").read_bytes() == b'backend: "python"'
    assert (served / "labels.txt").read_bytes() == b"sad\nglad\n"
    assert (served / "plain.txt").is_symlink()
