"""Join the parts of the ``nvidia-pytriton`` wheel with links, so that its Triton finds them.

The wheel has a python-backend stub for each Python version, but not beside the backend's library, where
Triton looks for it. A stub also needs the interpreter's shared library. The links are in the run folder;
nothing is copied, and the wheel is not changed.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from sm.errors import StartError

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
#: The module that Python models import. :mod:`sm.triton.stub_utils` takes its name, and the original gets the
#: second name.
UTILS, ORIGINAL_UTILS = "triton_python_backend_utils.py", "triton_original_backend_utils.py"
LIBPYTHON = f"libpython{VERSION}.so.1.0"


def find_installed() -> Path | None:
    """Return the tritonserver of the installed wheel; None without one."""
    spec = importlib.util.find_spec("pytriton")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return next((program for folder in folders if (program := _program(Path(folder)))), None)


def find_unpacked(folder: Path) -> Path | None:
    """Return the tritonserver of a wheel that ``sm prepare`` unpacked into ``folder``; None without one."""
    return _program(folder / "pytriton")


def _program(package: Path) -> Path | None:
    program = package / "tritonserver" / "bin" / "tritonserver"
    return program if program.is_file() else None


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
    _link(python / UTILS, Path(__file__).with_name("stub_utils.py"))
    _link(python / "triton_python_backend_stub", _stub(server))
    _link(folder / "lib" / LIBPYTHON, libpython())
    libraries = _root(server).parent.parent / "nvidia_pytriton.libs"
    return folder / "backends", {"LD_LIBRARY_PATH": f"{folder / 'lib'}:{libraries}"}


def libpython() -> Path:
    """Find the running interpreter's shared library, which the stub embeds."""
    library = next(
        (folder / LIBPYTHON for folder in _library_folders() if (folder / LIBPYTHON).is_file()), None
    )
    if library is None:
        raise StartError(
            f"Triton's python backend needs {LIBPYTHON}, which this Python ({sys.base_prefix}) does not "
            f"bring; on Debian and Ubuntu: apt-get install libpython{VERSION}."
        )
    return library


def _library_folders() -> Iterator[Path]:
    """Yield the folders that may hold the library, the interpreter's own before the system's."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    for base in (
        sysconfig.get_config_var("LIBDIR"),
        f"{sys.base_prefix}/lib",
        "/usr/lib",
        "/lib",
        "/usr/lib64",
    ):
        if base:
            yield Path(base)
            yield Path(base) / multiarch
    yield from _ldconfig_folders()


def _ldconfig_folders() -> Iterator[Path]:
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if Path(program).is_file():
            listing = subprocess.run([program, "-p"], capture_output=True, text=True, check=False).stdout
            for line in listing.splitlines():
                if LIBPYTHON in line and " => " in line:
                    yield Path(line.rpartition(" => ")[2]).parent
            return


def _root(server: Path) -> Path:
    return server.parent.parent


def _stub(server: Path) -> Path:
    stub = _root(server) / "python_backend_stubs" / VERSION / "triton_python_backend_stub"
    if not stub.is_file():
        versions = ", ".join(sorted(path.name for path in stub.parent.parent.iterdir()))
        raise StartError(f"Triton's wheel runs python models on Python {versions}, not on {VERSION}.")
    return stub


def _link(path: Path, target: Path) -> None:
    """Create a link, in the place of one from an earlier start of the same box."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)
