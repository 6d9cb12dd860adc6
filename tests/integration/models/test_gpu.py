"""The limit of GPU memory for loads, with a stand-in for nvidia-smi on PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.errors import OutOfMemory
from sm.models import memory_room


@pytest.fixture
def driver_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose content the stand-in prints. It writes its arguments into ``arguments`` beside it."""
    output, stand_in = tmp_path / "output", tmp_path / "nvidia-smi"
    stand_in.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n/bin/cat {output}\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return output


def test_a_gpu_over_the_limit_refuses_every_load(driver_output: Path) -> None:
    driver_output.write_text("1000, 10000\n8100, 10000\n")
    memory_room.check_gpus(0.9)
    with pytest.raises(OutOfMemory, match="GPU 1"):
        memory_room.check_gpus(0.8)
    arguments = driver_output.with_name("arguments").read_text()
    assert arguments.strip() == "--query-gpu=memory.used,memory.total --format=csv,noheader,nounits"


@pytest.mark.parametrize("output", ["", "[N/A], [N/A]\n", "0, 0\n"])
def test_useless_output_of_nvidia_smi_refuses_no_load(driver_output: Path, output: str) -> None:
    driver_output.write_text(output)
    memory_room.check_gpus(0.5)
    driver_output.with_name("nvidia-smi").unlink()
    memory_room.check_gpus(0.5)
