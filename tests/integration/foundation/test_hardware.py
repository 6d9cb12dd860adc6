"""What is on this machine: GPUs and TensorRT, which may be missing, and processes in every state."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sm import hardware
from sm.hardware import Gpu, Hardware, gpus, tensorrt
from tests.support.boxes import wait_until
from tests.support.fake_gpu import fake_nvidia_smi, fake_tensorrt_library

pytestmark = pytest.mark.core


def test_each_line_of_nvidia_smi_is_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path / "bin", "NVIDIA A10G, 8.6\nTesla T4, 7.5", monkeypatch)
    assert gpus() == (Gpu("NVIDIA A10G", "8.6"), Gpu("Tesla T4", "7.5"))
    assert Hardware.find().capabilities == ("7.5", "8.6")


@pytest.mark.parametrize(
    ("library", "said", "version"),
    [
        ("10.13.3", "", "10.13.3"),
        ("8.6.1", "8.6.1.2+cuda12.0.1.011", "8.6.1.2"),
        ("10.13.3", "10.13.3.9+cuda13.0", "10.13.3.9"),
        ("10.13.3", "10.13.30.9", "10.13.3"),
        ("10.13.3", "8.6.1.2+cuda12.0.1.011", "10.13.3"),
        ("10.13.3", "unknown", "10.13.3"),
        (None, "8.6.1.2+cuda12.0.1.011", "8.6.1.2"),
    ],
)
def test_the_image_says_the_fourth_number_of_its_own_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str | None, said: str, version: str
) -> None:
    if library:
        fake_tensorrt_library(tmp_path / "lib", library, monkeypatch)
    monkeypatch.setenv("TRT_VERSION", said)
    assert tensorrt() == version


def test_a_child_of_any_thread_is_found_with_its_command_line_and_state() -> None:
    """The thread must live on: its children become those of another one when it ends."""
    mine = os.getpid()
    with ThreadPoolExecutor(1) as thread, thread.submit(subprocess.Popen, ["sleep", "600"]).result() as child:
        try:
            assert child.pid in hardware.children(mine)
            wait_until(lambda: hardware.command_line(child.pid)[:2] == ["sleep", "600"])
            state, parent, *_ = hardware.status_fields(child.pid)
            assert (state in b"SR", int(parent)) == (True, mine)
        finally:
            child.kill()
        wait_until(lambda: hardware.status_fields(child.pid)[0] == b"Z", description="its end")
        assert child.pid in hardware.children(mine)
        assert hardware.command_line(child.pid) == [""]
    assert child.pid not in hardware.children(mine)
    assert hardware.status_fields(child.pid) == []
    assert hardware.children(child.pid) == set()
    assert hardware.command_line(child.pid) == [""]
