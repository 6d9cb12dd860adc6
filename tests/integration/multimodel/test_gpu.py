"""The GPUs' memory, as a stand-in for nvidia-smi on PATH tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.errors import OutOfMemory
from sm.multimodel import gpu_limit


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in says what is in this file."""
    said, stand_in = tmp_path / "said", tmp_path / "nvidia-smi"
    stand_in.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n/bin/cat {said}\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return said


def test_a_gpu_over_the_limit_admits_nothing(driver: Path) -> None:
    driver.write_text("1000, 10000\n8100, 10000\n")
    gpu_limit.check(0.9)
    with pytest.raises(OutOfMemory, match="81% of the memory of GPU 1"):
        gpu_limit.check(0.8)
    asked = driver.with_name("asked").read_text()
    assert asked.strip() == "--query-gpu=memory.used,memory.total --format=csv,noheader,nounits"


def test_without_a_limit_nobody_is_asked(driver: Path) -> None:
    driver.write_text("9999, 10000\n")
    gpu_limit.check(None)
    assert not driver.with_name("asked").exists()


@pytest.mark.parametrize("said", ["", "[N/A], [N/A]\n", "0, 0\n"])
def test_a_driver_that_says_nothing_of_use_stops_no_load(driver: Path, said: str) -> None:
    driver.write_text(said)
    gpu_limit.check(0.5)


def test_a_machine_without_a_driver_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    gpu_limit.check(0.5)
