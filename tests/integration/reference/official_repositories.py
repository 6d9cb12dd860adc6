"""Write model repositories in the forms that the official container accepts."""

from __future__ import annotations

from pathlib import Path

from tests.support.model_archives import multiplying_model
from tests.support.sm_command import run_sm

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


def run_inspect(repository: Path, **variables: str) -> tuple[int, str]:
    """Run ``sm inspect``, and return its exit code and error output."""
    completed = run_sm("inspect", repository, environment=variables)
    return completed.returncode, completed.stderr
