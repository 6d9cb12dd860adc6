"""This machine as models see it: its Triton, with backends and stubs for Python models, and a GPU.

The wheel ``nvidia-pytriton`` has a python-backend stub for each Python version, but not beside the backend's
library, where Triton looks for it. A stub also needs the interpreter's shared library. Links in the run
folder join the parts. A stub that asks for the wheel's own copy of CPython is replaced by a changed copy. The
wheel itself is not changed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sm import hardware
from sm.errors import StartError
from sm.repository import models
from sm.settings import PACKAGE, Settings

BACKENDS_OPTION = "--backend-directory="
#: Options that keep Triton from completing configurations.
NO_COMPLETION = ("--disable-auto-complete-config", "--strict-model-config=true", "--strict-model-config=1")
#: Where NVIDIA's image has it.
IMAGE = Path("/opt/tritonserver/bin/tritonserver")
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
#: The module that Python models import. :mod:`sm.triton.stub_utils` takes its name, and the original gets the
#: second name.
UTILS, ORIGINAL_UTILS = "triton_python_backend_utils.py", "triton_original_backend_utils.py"
LIBPYTHON = f"libpython{VERSION}.so.1.0"
#: The version of Triton in nvidia-pytriton 0.7.0, which names it in no file.
WHEEL_TRITON_VERSION = (2, 51)
STUB = "triton_python_backend_stub"
#: The name by which a stub asks for the wheel's copy of CPython: auditwheel puts a hash into it.
BUNDLED_LIBPYTHON = re.compile(rb"libpython3-[0-9a-f]+(\.\d+\.so\.1\.0)(?=\0)")

#: The most instances of one model in multi-model mode: each is a process, or memory of its own.
MAX_INSTANCES = 32


@dataclass(frozen=True)
class Machine:
    """A machine. Fields that are empty or None are unknown, and nothing is checked against them."""

    #: Triton's folder of backends.
    backends: Path | None = None
    #: Major and minor version.
    triton: tuple[int, ...] = ()
    #: The version of Python for models without a stub of their own.
    python: str = ""
    #: True if Triton completes configurations.
    completes: bool = True
    #: The most instances of one model, in all its served versions, where archives are others' work.
    max_instances: int | None = None
    #: None: look for a GPU when a model needs to know.
    gpu: bool | None = None

    @classmethod
    def find(cls, settings: Settings) -> Machine:
        """Describe this machine, with the Triton that the settings name."""
        arguments = settings.triton_arguments
        without_triton = cls(
            completes=not set(NO_COMPLETION) & set(arguments),
            max_instances=MAX_INSTANCES if settings.multi_model else None,
        )
        try:
            program = find_server(settings)
        except StartError:
            return without_triton
        backend_folders = [
            argument.removeprefix(BACKENDS_OPTION)
            for argument in arguments
            if argument.startswith(BACKENDS_OPTION)
        ]
        backends = Path(backend_folders[-1]) if backend_folders else program.parent.parent / "backends"
        return replace(
            without_triton,
            backends=backends if backends.is_dir() else None,
            triton=_triton_version(program),
            python=VERSION if is_wheel(program) else stub_version(backends / "python" / STUB),
        )

    @classmethod
    def of_this_host(cls) -> Machine:
        """Describe this machine, with settings from the environment."""
        return cls.find(Settings.read(os.environ))

    @property
    def has_gpu(self) -> bool:
        return hardware.has_gpu() if self.gpu is None else self.gpu

    @property
    def knows_all_names(self) -> bool:
        """True if tritonclient's protobuf knows every field that this Triton knows."""
        return not self.triton or models.protobuf_version() >= self.triton

    def has_backend(self, name: str, folders: tuple[Path, ...]) -> bool:
        """True if Triton finds the backend: among its own, or in one of the model's ``folders``."""
        if self.backends is None or (self.backends / name).is_dir():
            return True
        return any((folder / f"libtriton_{name}.so").exists() for folder in folders)


def _triton_version(program: Path) -> tuple[int, ...]:
    if is_wheel(program):
        return WHEEL_TRITON_VERSION
    try:
        version = (program.parent.parent / "TRITON_VERSION").read_text().strip()
        return hardware.version_numbers(version)[:2]
    except OSError:
        return ()


def find_server(settings: Settings) -> Path:
    """Find the tritonserver: that of the settings, the image, the installed wheel, or the cache.

    Raises:
        StartError: There is none.
    """
    if settings.triton_server:
        if not os.access(settings.triton_server, os.X_OK) or settings.triton_server.is_dir():
            raise StartError(f"TRIREME_TRITON_SERVER={str(settings.triton_server)!r} is not a program.")
        return settings.triton_server
    if IMAGE.is_file():
        return IMAGE
    # The installed wheel, and the one that `sm prepare` unpacked.
    wheel = importlib.util.find_spec("pytriton")
    installed = map(Path, (wheel and wheel.submodule_search_locations) or ())
    packages = (*installed, settings.cache / "triton" / "pytriton")
    programs = (package / "tritonserver" / "bin" / "tritonserver" for package in packages)
    server = next(filter(Path.is_file, programs), None)
    if server is None:
        raise StartError(
            f"There is no tritonserver: neither {IMAGE} nor, in {sys.prefix}, the wheel that "
            "`pip install --no-deps nvidia-pytriton` brings. `sm prepare --triton` fetches it into the cache."
        )
    return server


def is_wheel(server: Path) -> bool:
    """True if ``server`` comes from the wheel, installed or unpacked."""
    return (_root(server) / "python_backend_stubs").is_dir()


def assemble(server: Path, folder: Path) -> tuple[Path, dict[str, str]]:
    """Link the parts into ``folder``.

    Returns:
        The backend directory, and the environment variables that Triton needs.

    Raises:
        StartError: A part is missing.
    """
    python = folder / "backends" / "python"
    for part in (_root(server) / "backends" / "python").iterdir():
        if part.is_file():
            _link(python / (ORIGINAL_UTILS if part.name == UTILS else part.name), part)
    _link(python / UTILS, PACKAGE / "triton" / "stub_utils.py")
    _link(folder / "lib" / LIBPYTHON, libpython())
    packages = _root(server).parent.parent
    libraries = packages / "nvidia_pytriton.libs"
    stub = _root(server) / "python_backend_stubs" / VERSION / STUB
    if not stub.is_file():
        raise StartError(
            f"Triton's python backend here ({_root(server)}) has no program for Python {VERSION}."
        )
    if asks_for_bundled := bool(BUNDLED_LIBPYTHON.search(stub.read_bytes())):
        # The stub finds the libraries by a relative path, so it must lie as deep below them as in the wheel.
        _link(folder / libraries.name, libraries)
        own_stub = folder / stub.relative_to(packages)
        _copy_unbundled(stub, own_stub)
    _link(python / STUB, own_stub if asks_for_bundled else stub)
    return folder / "backends", {"LD_LIBRARY_PATH": f"{folder / 'lib'}:{libraries}"}


def _copy_unbundled(stub: Path, copy: Path) -> None:
    """Copy a stub so that it asks for the interpreter's library by its plain name, as other stubs do.

    The wheel's stub for 3.13 finds the wheel's CPython 3.13.0 by an RPATH, which LD_LIBRARY_PATH does not
    beat. That library cannot run the modules of a later 3.13.
    """

    def plain_name(name: re.Match[bytes]) -> bytes:
        return (b"libpython3" + name[1]).ljust(len(name[0]), b"\0")

    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.unlink(missing_ok=True)
    copy.write_bytes(BUNDLED_LIBPYTHON.sub(plain_name, stub.read_bytes()))
    copy.chmod(0o755)
    if not os.access(copy, os.X_OK):
        raise StartError(
            f"{copy.parent} is on a file system that runs no programs (noexec), and Triton's program for "
            f"Python {VERSION} has to be copied: set TMPDIR to a folder on another one."
        )


def libpython() -> Path:
    """Find the running interpreter's shared library, which the stub embeds."""
    own = sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib"
    folders = [*(Path(folder) for folder in own if folder), *_ldconfig_folders()]
    # A Python that was moved may name a folder that this user may not enter, where Path.is_file() raises.
    library = next((folder / LIBPYTHON for folder in folders if os.access(folder / LIBPYTHON, os.R_OK)), None)
    if library is None:
        raise StartError(
            f"Triton's python backend needs {LIBPYTHON}, which this Python ({sys.base_prefix}) does not "
            f"bring; on Debian and Ubuntu: apt-get install libpython{VERSION}."
        )
    return library


def _ldconfig_folders() -> Iterator[Path]:
    """Yield the system's folders that have the library."""
    program = shutil.which("ldconfig", path="/sbin:/usr/sbin")
    command = [program, "-p"] if program else ["true"]
    listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    for line in listing.splitlines():
        if LIBPYTHON in line and " => " in line:
            yield Path(line.rpartition(" => ")[2]).parent


def _root(server: Path) -> Path:
    return server.parent.parent


def _link(path: Path, target: Path) -> None:
    """Create a link, in the place of one from an earlier start of the same box."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def stub_version(stub: Path) -> str:
    """Return the Python version that a stub was linked with; empty if there is no stub."""
    if not stub.is_file():
        return ""
    linked = re.search(rb"libpython3(?:-[0-9a-f]+)?(\.\d+)\.so", stub.read_bytes())
    return f"3{linked[1].decode()}" if linked else ""
