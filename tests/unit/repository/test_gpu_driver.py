"""The driver and CUDA's forward-compatibility libraries, from files as a driver and NVIDIA's image have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sm import hardware
from sm.errors import StartError
from sm.hardware import Gpu
from sm.repository import gpu_driver
from sm.repository.gpu_driver import GpuDriver

CLOSED = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Nov  6 01:09:58 UTC 2025
GCC version:  gcc version 11.5.0 20240719 (Red Hat 11.5.0-5) (GCC)
"""
OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (builder@host)  Tue Sep 23 2025
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
"""


def find(
    folder: Path, driver: str, libraries: str, form: str = CLOSED, works: bool = True, has_gpu: bool = False
) -> GpuDriver:
    """Describe a machine with a driver and libraries of these versions."""
    if driver:
        (folder / "version").write_text(form.format(driver))
    if libraries:
        (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{libraries}")
        (folder / f"libcuda.so.{libraries}").touch()
    variables, folders = {"CUDA_VERSION": "13.3.1.014"}, (folder / "none", folder)
    return GpuDriver.find(variables, folder / "version", folders, lambda _: works, lambda: has_gpu)


OLD = {"LD_LIBRARY_PATH": "{folder}:/usr/local/nvidia/lib"}


@pytest.mark.parametrize(
    ("driver", "form", "libraries", "options", "variables", "level"),
    [
        # Libraries come first if the driver is older.
        ("470.256.02", CLOSED, "580.95.05", {}, OLD, "info"),
        ("580.95.04", OPEN, "580.95.05", {}, OLD, "info"),
        ("580.95", CLOSED, "580.95.05", {}, OLD, "info"),
        ("580.95.05", OPEN, "580.95.05", {}, {}, "info"),
        ("580.105.08", CLOSED, "580.95.05", {}, {}, "info"),
        ("615.65", OPEN, "580.95.05", {}, {}, "info"),
        ("535.129.03", CLOSED, "580.95.05", {"works": False}, {}, "warning"),
        ("535.129.03", CLOSED, "", {}, {}, "info"),
        ("", CLOSED, "580.95.05", {}, {"TRITON_SERVER_CPU_ONLY": "1"}, "warning"),
        # WSL and Jetsons have no such file.
        ("", CLOSED, "580.95.05", {"has_gpu": True}, {}, "info"),
    ],
)
def test_what_a_machine_gets_and_the_start_says(
    tmp_path: Path, driver: str, form: str, libraries: str, options: Any, variables: Any, level: str
) -> None:
    found = find(tmp_path, driver, libraries, form, **options)
    expected = {name: text.format(folder=tmp_path) for name, text in variables.items()}
    # Twice the same: a box starts programs that start others.
    for paths in ("/usr/local/nvidia/lib", f"{tmp_path}:/usr/local/nvidia/lib"):
        assert found.variables({"LD_LIBRARY_PATH": paths}) == expected
    # An empty folder in a path would be the working directory.
    assert not found.variables({}).get("LD_LIBRARY_PATH", "").endswith(":")
    line = found.describe()
    assert line and line[0] == level and driver in line[1]


@pytest.mark.parametrize(
    ("cuda", "tensorrt", "capabilities", "is_refused"),
    [
        ("13.3.0.1", "", ("7.0",), True),
        ("", "10.5.0", ("7.0",), True),
        ("", "11.0.0.5", ("6.1", "7.0"), True),
        ("12.9.1", "10.3.0", ("7.0",), False),
        ("13.3.0", "11.0.0", ("7.5",), False),
        ("13.3.0", "11.0.0", ("7.0", "8.6"), False),
        ("13.3.0", "11.0.0", ("10.0",), False),
        ("13.3.0", "11.0.0", (), False),
    ],
)
def test_gpus_are_too_old_if_none_is_new_enough_for_cuda_or_tensorrt(
    cuda: str, tensorrt: str, capabilities: tuple[str, ...], is_refused: bool
) -> None:
    sentence = gpu_driver.find_old_gpu(tuple(Gpu("a GPU", each) for each in capabilities), cuda, tensorrt)
    assert bool(sentence) == is_refused


def test_a_start_refuses_gpus_that_are_too_old_if_it_may_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: True)
    monkeypatch.setattr(hardware, "gpus", lambda: (Gpu("Tesla V100", "7.0"),))
    gpu_driver.check_gpus("12.9.1")
    with pytest.raises(StartError, match="V100"):
        gpu_driver.check_gpus("13.3.0.1")
    monkeypatch.setattr(hardware, "has_gpu", lambda: False)  # CUDA_VISIBLE_DEVICES=-1
    gpu_driver.check_gpus("13.3.0.1")
