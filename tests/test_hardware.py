"""What the box has: the driver's answer and the library's name; nothing of it has to be there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sm.hardware import Gpu, Hardware, gpus, tensorrt


def standin_nvidia_smi(folder: Path, says: str, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> None:
    """A stand-in for the driver's program, first on PATH: prints what it is told."""
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def standin_library(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with the names of TensorRT's library and of the links to it."""
    folder.mkdir(exist_ok=True)
    for name in (version, version.partition(".")[0]):
        (folder / f"libnvinfer.so.{name}").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))


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
