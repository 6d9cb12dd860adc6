"""Write model repositories in the forms that the official container accepts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sm.settings import HERE
from tests.support.boxes import free_port
from tests.support.model_archives import multiplying_model

KIND_GPU = "instance_group [ { count: 1 kind: KIND_GPU } ]\n"


#: A list of GPUs without a kind implies KIND_GPU.
GPU_LIST = "instance_group [ { count: 1 gpus: [ 0 ] } ]\n"


#: The source of a Python model that declares its inputs and outputs, so that Triton completes its configuration.
AUTO_COMPLETE = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(8)
        return config

    def initialize"""


def write_model(folder: Path, extra_config: str = "") -> Path:
    """Write a model that multiplies by one. ``extra_config`` is appended to its configuration."""
    multiplying_model().write(folder)
    with (folder / "config.pbtxt").open("a") as config:
        config.write(extra_config)
    return folder


def write_model_without_config(folder: Path, in_version: bool = False) -> Path:
    """Write a model whose configuration Triton completes. ``in_version``: the version folder has one."""
    write_model(folder)
    config, script = folder / "config.pbtxt", folder / "1" / "model.py"
    config.rename(folder / "1" / "config.pbtxt") if in_version else config.unlink()
    script.write_text(script.read_text().replace("\n    def initialize", AUTO_COMPLETE, 1))
    return folder


def run_failing_serve(repository: Path, **variables: str) -> tuple[int, str]:
    """Run ``serve`` with a repository that must make it fail, and return its exit code and output."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRIREME_", "SAGE"))
    }
    environment |= {
        "SAGEMAKER_BIND_TO_PORT": str(free_port()),
        "TRIREME_MODEL_REPOSITORY": str(repository),
        **variables,
    }
    completed = subprocess.run(
        [sys.executable, str(HERE / "serve")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return completed.returncode, completed.stdout + completed.stderr


def run_inspect(repository: Path, **variables: str) -> tuple[int, str]:
    """Run ``sm inspect``, and return its exit code and error output."""
    completed = subprocess.run(
        [sys.executable, "-m", "sm.cli", "inspect", str(repository)],
        cwd=HERE,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    return completed.returncode, completed.stderr
