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
#: Seconds; a driver in trouble may hang, and the start must say so in five.
QUERY_TIMEOUT_S = 3
#: Where NVIDIA's image and Debian packages have the library that Triton loads.
SYSTEM = (
    Path("/opt/tritonserver/backends/tensorrt"),
    Path("/usr/lib/x86_64-linux-gnu"),
    Path("/usr/lib/aarch64-linux-gnu"),
    Path("/usr/local/tensorrt/lib"),
)
#: Where the kernel shows a GPU: NVIDIA's own, in WSL, on Jetson.
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
    """``tensorrt`` is None where no library was found."""

    gpus: tuple[Gpu, ...]
    tensorrt: str | None

    @classmethod
    def find(cls) -> Hardware:
        """Ask the driver, and look for the library; neither being there is no error."""
        return cls(gpus(), tensorrt())

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Each compute capability once, in order."""
        return tuple(sorted({gpu.compute_capability for gpu in self.gpus}))


def gpus() -> tuple[Gpu, ...]:
    """The GPUs that the driver shows to this process."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, check=False, timeout=QUERY_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if done.returncode:
        return ()
    rows = (line.rpartition(",") for line in done.stdout.splitlines())
    return tuple(
        Gpu(name.strip(), capability.strip()) for name, comma, capability in rows if comma and name.strip()
    )


def has_gpu(devices: Path = DEVICES) -> bool:
    """Whether Triton may find a GPU: by its device file, which is there when the driver's program hangs.

    A GPU in doubt counts as one: Triton itself says what is wrong with it.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and (not visible or visible.startswith("-")):
        return False
    return any(path for name in DEVICE_NAMES for path in devices.glob(name)) or bool(gpus())


def tensorrt() -> str | None:
    """TensorRT's version: of the library that Triton would load, else of the Python package."""
    for folder in _folders():
        for path in sorted(folder.glob("libnvinfer.so.*"), key=lambda path: len(path.name), reverse=True):
            if found := LIBRARY.match(path.name):
                return found[1]
    try:
        return importlib.metadata.version("tensorrt")
    except importlib.metadata.PackageNotFoundError:
        return None


def _folders() -> Iterator[Path]:
    yield from (Path(part) for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part)
    yield from SYSTEM
