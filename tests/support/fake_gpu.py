"""Stand-ins for nvidia-smi and the TensorRT library, for machines without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


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
