"""Where a plan is built: trtexec is found where NVIDIA installs it, and a GPU that is too old is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm import hardware
from sm.errors import StartError
from sm.hardware import Gpu
from trireme_extensions.convert import plans
from trireme_extensions.convert.plans import TensorRTPlan


def test_trtexec_is_found_where_nvidia_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [str(folder) for folder in plans.FOLDERS] == ["/usr/src/tensorrt/bin", "/opt/tensorrt/bin"]
    monkeypatch.setattr(plans, "FOLDERS", (tmp_path / "a", tmp_path / "b"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert plans.find_trtexec() is None
    for folder in ("b", "a", "path"):
        file = tmp_path / folder / "trtexec"
        file.parent.mkdir()
        file.touch(0o755)
        assert plans.find_trtexec() == str(file)


def test_no_plan_is_built_where_no_gpu_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/unit/repository/test_gpu_driver.py has the rule."""
    monkeypatch.setattr(hardware, "gpus", lambda: (Gpu("Tesla V100", "7.0"),))
    monkeypatch.setattr(hardware, "tensorrt", lambda: "10.5.0")
    with pytest.raises(StartError, match="Tesla V100"):
        plans.build_plan(TensorRTPlan("m", tmp_path / "m.onnx", tmp_path / "m.plan", tmp_path / "log"))
