"""What Triton reads in place of the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.repository import models, overlay
from sm.repository.machine import Machine


@pytest.mark.parametrize(("without_gpu", "moved"), [("cpu", True), ("error", False)])
def test_a_model_for_a_gpu_runs_on_the_cpu_only_where_the_settings_let_it(
    tmp_path: Path, without_gpu: str, moved: bool
) -> None:
    """With liveness as readiness, the other models are served although this one cannot be."""
    model = tmp_path / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "python" instance_group [{ kind: KIND_GPU }]')
    machine = Machine(gpu=False, without_gpu=without_gpu)
    served = overlay.for_triton(model.parent, tmp_path / "overlay", machine)
    assert models.Model.read(served / "m").wants_gpu is not moved
    assert models.Model.read(model).wants_gpu
