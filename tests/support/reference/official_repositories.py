"""Model repositories as the official container takes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sm.settings import HERE
from tests.support.model_archives import multiplying_model

KIND_GPU = "instance_group [ { count: 1 kind: KIND_GPU } ]\n"


#: A list of GPUs without a kind is as much as to say KIND_GPU.
LISTED = "instance_group [ { count: 1 gpus: [ 0 ] } ]\n"


#: Triton completes a Python model that says itself what it takes and gives.
COMPLETE = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(8)
        return config

    def initialize"""


def write(folder: Path, more: str = "") -> Path:
    """A model that multiplies by one; ``more`` is added to its configuration."""
    multiplying_model().write(folder)
    with (folder / "config.pbtxt").open("a") as config:
        config.write(more)
    return folder


def write_bare(folder: Path, inner: bool = False) -> Path:
    """One without a configuration at the top, as Triton completes it; ``inner``: it has one in its version."""
    write(folder)
    config, script = folder / "config.pbtxt", folder / "1" / "model.py"
    config.rename(folder / "1" / "config.pbtxt") if inner else config.unlink()
    script.write_text(script.read_text().replace("\n    def initialize", COMPLETE, 1))
    return folder


def serve(repository: Path, **variables: str) -> tuple[int, str]:
    """A start that is to fail: its exit code and all it says."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRIREME_", "SAGE"))
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "serve")],
        env={**environment, "TRIREME_MODEL_REPOSITORY": str(repository), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def inspect(repository: Path, **variables: str) -> tuple[int, str]:
    """``sm inspect``: its exit code, and what it says is wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "sm.cli", "inspect", str(repository)],
        cwd=HERE,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr
