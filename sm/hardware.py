"""The GPUs and the TensorRT library of this machine."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
#: Seconds. A faulty driver may hang, and a failing start must report within five.
QUERY_TIMEOUT_S = 3
#: Folders of NVIDIA's image and of Debian packages with the library that Triton loads.
LIBRARY_FOLDERS = (
    Path("/opt/tritonserver/backends/tensorrt"),
    Path("/usr/lib/x86_64-linux-gnu"),
    Path("/usr/lib/aarch64-linux-gnu"),
    Path("/usr/local/tensorrt/lib"),
)
#: Device files of a GPU: NVIDIA's driver, WSL, Jetson.
DEVICES, DEVICE_NAMES = Path("/dev"), ("nvidia[0-9]*", "dxg", "nvhost-gpu")
#: ``libnvinfer.so.10.13.3``; the links to it have fewer numbers.
LIBRARY = re.compile(r"^libnvinfer\.so\.(\d+\.\d+(?:\.\d+)*)$")


@dataclass(frozen=True)
class Gpu:
    """One GPU, as its driver names it; ``compute_capability`` such as ``8.6``."""

    name: str
    compute_capability: str


@dataclass(frozen=True)
class Hardware:
    """The GPUs of this machine and its TensorRT version; ``tensorrt`` is None if no library was found."""

    gpus: tuple[Gpu, ...]
    tensorrt: str | None

    @classmethod
    def find(cls) -> Hardware:
        """Query the driver and search for the library; a machine may have neither."""
        return cls(gpus(), tensorrt())

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Return the distinct compute capabilities, in order."""
        return tuple(sorted({gpu.compute_capability for gpu in self.gpus}))


def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that this process may use, as the driver lists them."""
    try:
        process = subprocess.run(QUERY, capture_output=True, text=True, check=False, timeout=QUERY_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if process.returncode:
        return ()
    rows = (line.rpartition(",") for line in process.stdout.splitlines())
    return tuple(
        Gpu(name.strip(), capability.strip()) for name, comma, capability in rows if comma and name.strip()
    )


def has_gpu(devices: Path = DEVICES) -> bool:
    """True if there is a device file of a GPU. The file exists even if the driver's program hangs.

    If in doubt, the answer is True: Triton reports what is wrong with the GPU.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and (not visible or visible.startswith("-")):
        return False
    return any(path for name in DEVICE_NAMES for path in devices.glob(name)) or bool(gpus())


def tensorrt() -> str | None:
    """Return the version of the TensorRT library that Triton would load, else of the Python package."""
    for folder in _folders():
        for path in sorted(folder.glob("libnvinfer.so.*"), key=lambda path: len(path.name), reverse=True):
            if match := LIBRARY.match(path.name):
                return match[1]
    try:
        return importlib.metadata.version("tensorrt")
    except importlib.metadata.PackageNotFoundError:
        return None


def _folders() -> Iterator[Path]:
    yield from (Path(part) for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part)
    yield from LIBRARY_FOLDERS
