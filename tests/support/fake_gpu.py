"""Fake nvidia-smi and fake TensorRT libraries for machines without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def fake_nvidia_smi(folder: Path, output: str, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> None:
    """Put an ``nvidia-smi`` first on PATH that prints ``output`` and exits with ``code``."""
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def fake_tensorrt_library(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put empty files with the names of TensorRT's library and its link on LD_LIBRARY_PATH."""
    folder.mkdir(exist_ok=True)
    for name in (version, version.partition(".")[0]):
        (folder / f"libnvinfer.so.{name}").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
