"""What the box has: the driver's answer and the library's name; nothing of it has to be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.hardware import Gpu, Hardware, gpus, tensorrt
from tests.support.fake_gpu import standin_library, standin_nvidia_smi


def test_each_gpu_is_a_line_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standin_nvidia_smi(tmp_path / "bin", "NVIDIA A10G, 8.6\nTesla T4, 7.5", monkeypatch)
    assert gpus() == (Gpu("NVIDIA A10G", "8.6"), Gpu("Tesla T4", "7.5"))
    assert Hardware.find().capabilities == ("7.5", "8.6")


def test_no_driver_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == ()


def test_a_driver_that_fails_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver, try again"
    standin_nvidia_smi(tmp_path / "bin", says, monkeypatch, code=9)
    assert gpus() == ()


def test_the_library_says_its_version_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standin_library(tmp_path / "lib", "10.13.3", monkeypatch)
    assert tensorrt() == "10.13.3"
