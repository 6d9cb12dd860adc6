"""GPUs and TensorRT are detected from the driver's command and the library's name; both may be missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.hardware import Gpu, Hardware, gpus, tensorrt
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
