"""The NVIDIA driver of this machine, and whether CUDA here needs its forward-compatibility libraries for it.

NVIDIA's image links these libraries in an entry point of its own, which needs root, and container toolkits
from 1.17.4 on do not mount them. The box does what AWS recommends for SageMaker: if the driver is older than
the libraries, their folder comes first in LD_LIBRARY_PATH. As NVIDIA's entry point does, it tries them first,
since they work on GPUs for data centres only.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm import hardware
from sm.errors import StartError

DRIVER = Path("/proc/driver/nvidia/version")
#: Where NVIDIA's images and Debian packages have the libraries.
COMPATIBILITY = tuple(Path("/usr/local/cuda/compat", name) for name in ("lib.real", "lib", ""))
#: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build …"; the closed module
#: says "x86_64 Kernel Module  535.129.03  Thu …".
DRIVER_LINE = re.compile(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", re.MULTILINE)
#: ``libcuda.so.580.95.05``; the link to it has one number.
LIBRARY = re.compile(r"^libcuda\.so\.(\d+\.\d+(?:\.\d+)?)$")
PATHS = "LD_LIBRARY_PATH"
#: Since these versions there is no support for GPUs before Turing, as the release notes of CUDA 13.0 and of
#: TensorRT 10.5 say.
OLDEST_CAPABILITY = (7, 5)
WITHOUT_VOLTA = {"CUDA": (13,), "TensorRT": (10, 5)}
#: Triton then looks for no metrics of GPUs.
WITHOUT_GPU = {"TRITON_SERVER_CPU_ONLY": "1"}
#: The first call of the driver, which also says whether it is compatible.
TRIAL = "import ctypes, sys; sys.exit(min(ctypes.CDLL('libcuda.so.1').cuInit(0), 1))"
#: Initializing many GPUs takes seconds; a faulty driver may hang.
TRIAL_TIMEOUT_S = 30.0


def works(folder: Path) -> bool:
    """True if CUDA starts with the libraries of this folder. Another process tries it."""
    environment = {**os.environ, PATHS: _before(folder, os.environ)}
    try:
        trial = subprocess.run(
            (sys.executable, "-c", TRIAL),
            env=environment,
            capture_output=True,
            check=False,
            timeout=TRIAL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return trial.returncode == 0


@dataclass(frozen=True)
class Compatibility:
    """The forward-compatibility libraries."""

    folder: Path
    #: The driver that they were made with, such as ``580.95.05``.
    version: str


@dataclass(frozen=True)
class GpuDriver:
    """The driver, and the libraries of this image."""

    #: The driver's version, such as ``535.129.03``; empty if there is no driver.
    version: str
    #: CUDA's version as NVIDIA's image says it; empty outside of such an image.
    cuda: str
    libraries: Compatibility | None
    #: True if there is a GPU; that of WSL or of a Jetson has a driver without a version.
    has_gpu: bool
    #: True if the driver is older than the libraries.
    is_old: bool = False
    #: True if the libraries are to be used.
    is_helped: bool = False

    @classmethod
    def find(
        cls,
        environment: Mapping[str, str],
        driver: Path = DRIVER,
        folders: tuple[Path, ...] = COMPATIBILITY,
        works: Callable[[Path], bool] = works,
        has_gpu: Callable[[], bool] = hardware.has_gpu,
    ) -> GpuDriver:
        """Read the files of the driver and of the libraries; try the libraries if the driver is older."""
        version, libraries = _driver_version(driver), _libraries(folders)
        is_old = bool(
            version
            and libraries
            and hardware.version_numbers(version) < hardware.version_numbers(libraries.version)
        )
        is_helped = is_old and libraries is not None and works(libraries.folder)
        cuda = environment.get("CUDA_VERSION", "")
        return cls(version, cuda, libraries, bool(version) or has_gpu(), is_old, is_helped)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for programs that use the GPU, as NVIDIA's entry point sets them."""
        if self.is_helped and self.libraries:
            return {PATHS: _before(self.libraries.folder, environment)}
        return {} if self.has_gpu or not self.cuda else WITHOUT_GPU

    def describe(self) -> tuple[str, str] | None:
        """Return level and text for the log; None on a machine that has nothing of NVIDIA's."""
        cuda = f"CUDA {self.cuda}" if self.cuda else "CUDA"
        if not self.version:
            if not self.cuda:
                return None
            if self.has_gpu:
                return "info", f"a GPU whose driver tells no version, {cuda}"
            return "warning", (
                f"there is no NVIDIA driver for {cuda}, so nothing runs on a GPU: give the container one "
                "with --gpus all"
            )
        text = f"NVIDIA driver {self.version}, {cuda}"
        if self.libraries is None:
            return "info", f"{text}; there are no forward-compatibility libraries"
        libraries = f"the forward-compatibility libraries {self.libraries.version}"
        if not self.is_old:
            return "info", f"{text}; {libraries} are not needed"
        if self.is_helped:
            return "info", f"{text}; {libraries} are needed and used, from {self.libraries.folder}"
        return "warning", (
            f"{text}; {libraries} are needed and do not work with this driver and GPU: models on the GPU may "
            f"fail. Take a host with driver {self.libraries.version} or newer, or an image with an older CUDA"
        )


def find_old_gpu(gpus: Sequence[hardware.Gpu], cuda: str = "", tensorrt: str = "") -> str:
    """Say that no GPU is new enough for a CUDA or a TensorRT; empty if one is, or if nothing is known."""
    needs = next(
        (
            f"{name} {version}"
            for name, version in (("CUDA", cuda), ("TensorRT", tensorrt))
            if hardware.version_numbers(version) >= WITHOUT_VOLTA[name]
        ),
        "",
    )
    new_enough = (hardware.version_numbers(gpu.compute_capability) >= OLDEST_CAPABILITY for gpu in gpus)
    if not needs or not gpus or any(new_enough):
        return ""
    return (
        f"{gpus[0].name} has compute capability {gpus[0].compute_capability}, and {needs} runs on "
        f"{'.'.join(map(str, OLDEST_CAPABILITY))} and newer"
    )


def check_gpus(cuda: str) -> None:
    """Raise :class:`StartError` if this image's CUDA runs on none of the GPUs that the box may use."""
    if hardware.version_numbers(cuda) < WITHOUT_VOLTA["CUDA"] or not hardware.has_gpu():
        return
    if sentence := find_old_gpu(hardware.gpus(), cuda):
        raise StartError(
            f"{sentence}: take a newer GPU, or an image with an older base, such as 25.07, or serve on the "
            "processor with CUDA_VISIBLE_DEVICES=-1."
        )


@functools.cache
def of_this_machine() -> GpuDriver:
    """Describe this machine. The libraries are tried once in a process."""
    return GpuDriver.find(os.environ)


def _driver_version(file: Path) -> str:
    try:
        match = DRIVER_LINE.search(file.read_text(errors="replace"))
    except OSError:
        return ""
    return match[1] if match else ""


def _libraries(folders: tuple[Path, ...]) -> Compatibility | None:
    for folder in folders:
        for path in sorted(folder.glob("libcuda.so.*")):
            if match := LIBRARY.match(path.name):
                return Compatibility(folder, match[1])
    return None


def _before(folder: Path, environment: Mapping[str, str]) -> str:
    """Return the paths of libraries with the folder before the others."""
    others = environment.get(PATHS, "").split(os.pathsep)
    return os.pathsep.join([str(folder), *(path for path in others if path and path != str(folder))])
