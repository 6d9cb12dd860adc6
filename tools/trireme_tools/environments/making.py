"""Create an environment from wheels, or with conda-pack; with a Python of its own, so that it can move."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sm.errors import CommandError
from sm.repository import machine
from trireme_tools.environments.stub import Stub

#: A program that prints where a Python has its program, libraries and shared libraries.
PROBE = """
import json, sys, sysconfig
paths = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix})
places = [sysconfig.get_config_var("LIBDIR"), sys.base_prefix + "/lib", "/usr/lib", "/lib", "/usr/lib64"]
inside = sysconfig.get_config_var("MULTIARCH") or ""
print(json.dumps({
    "version": sys.version,
    "program": getattr(sys, "_base_executable", sys.executable),
    "prefix": sys.base_prefix,
    "libraries": [paths["stdlib"], paths["platstdlib"]],
    "shared": [place + end for place in places if place for end in ("", "/" + inside)],
}))
"""
#: Not copied: tests, static libraries, other packages, and the file that forbids installing any.
EXCLUDED = shutil.ignore_patterns(
    *("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "ensurepip"),
    *("config-*", "*.a", "*.o", "EXTERNALLY-MANAGED", "sitecustomize.py"),
)


@dataclass(frozen=True)
class BasePython:
    """A Python on this machine. ``libraries`` are the folders of its standard library, below ``prefix``."""

    version: str
    program: Path
    prefix: Path
    libraries: tuple[Path, ...]
    libpython: Path

    @classmethod
    def find(cls, python: str) -> BasePython:
        """Find a Python of the minor version ``python`` (3.12): the running one, or ``python3.12`` on
        PATH.
        """
        program = sys.executable if python == machine.VERSION else shutil.which(f"python{python}")
        process = program and subprocess.run(
            [program, "-c", PROBE], capture_output=True, text=True, check=False
        )
        if not process or process.returncode:
            raise CommandError(
                f"There is no python{python} on PATH to make the environment from: install it."
            )
        facts = json.loads(process.stdout)
        return cls(
            facts["version"],
            Path(facts["program"]),
            Path(facts["prefix"]),
            tuple(Path(path) for path in dict.fromkeys(facts["libraries"])),
            _libpython(python, facts["shared"]),
        )

    def copy(self, folder: Path) -> None:
        """Copy the program and its libraries, in a layout that works in any folder."""
        (folder / "bin").mkdir(parents=True)
        shutil.copy(self.program, folder / "bin" / "python3")
        (folder / "bin" / "python").symlink_to("python3")
        for library in self.libraries:
            shutil.copytree(
                library,
                folder / library.relative_to(self.prefix),
                ignore=EXCLUDED,
                ignore_dangling_symlinks=True,
                dirs_exist_ok=True,
            )
        (folder / "lib").mkdir(exist_ok=True)
        shutil.copy(self.libpython, folder / "lib" / self.libpython.name)


def _libpython(python: str, folders: list[str]) -> Path:
    name = f"libpython{python}.so.1.0"
    library = next((Path(folder) / name for folder in folders if (Path(folder) / name).is_file()), None)
    if library is None:
        raise CommandError(
            f"Triton's Python model process needs {name}, which this python{python} does not bring; "
            f"on Debian and Ubuntu: apt-get install libpython{python}."
        )
    return library


#: The python backend sources this in bash, and puts ``lib`` on LD_LIBRARY_PATH itself.
ACTIVATE = Path(__file__).with_name("activate.sh")
#: The first lines of a script that pip or uv installed; they contain the folder of the installation.
FIRST_LINES = re.compile(rb"\A(#!/bin/sh\n'''exec' [^\n]*\n' '''\n|#![^\n]*python[^\n]*\n)")


def from_wheels(folder: Path, requirements: Path, base: BasePython, stub: Stub) -> None:
    """Create a relocatable Python with the packages; nothing is compiled."""
    base.copy(folder)
    python = folder / "bin" / "python3"
    # NumPy is always included: the backend imports it in every model's process.
    packages = ["--only-binary", ":all:", "--requirement", str(requirements.absolute()), stub.numpy]
    _run(
        [*_installer(python), *packages],
        f"{requirements} cannot be installed from wheels for Python {stub.python} with {stub.numpy}, which "
        "the stub wants",
        requirements.absolute().parent,
    )
    shutil.copyfile(ACTIVATE, folder / "bin" / "activate")
    # Debian's Python has its scripts in local/bin.
    for script in (*folder.glob("bin/*"), *folder.glob("local/bin/*")):
        if script.is_file() and not script.is_symlink() and script.stat().st_size < 2**16:
            script.write_bytes(FIRST_LINES.sub(b"#!/usr/bin/env python3\n", script.read_bytes()))


def from_conda(folder: Path, file: Path) -> None:
    """Create an environment from a conda file, packed by conda-pack, whose ``bin/activate`` works
    anywhere.
    """
    if missing := [tool for tool in ("conda", "conda-pack") if not shutil.which(tool)]:
        names = " and no ".join(missing)
        raise CommandError(f"There is no {names} on PATH: install them, or use --requirements.")
    environment, packed = folder.with_name("conda"), folder.with_name("conda.tar.gz")
    line = ["conda", "env", "create", "--yes", "--prefix", str(environment), "--file", str(file.absolute())]
    _run(line, f"conda cannot make {file}", file.absolute().parent)
    _run(
        ["conda-pack", "--prefix", str(environment), "--output", str(packed)],
        f"conda-pack cannot pack {file}",
        environment.parent,
    )
    folder.mkdir()
    _run(["tar", "xzf", str(packed), "-C", str(folder)], f"{packed} cannot be unpacked", environment.parent)


def _installer(python: Path) -> list[str]:
    """Return uv, which is faster and one of the test tools, or else pip."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", str(python)]
    if importlib.util.find_spec("pip") is None:
        raise CommandError("There is neither uv nor pip to install the packages with.")
    return [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]


def _run(line: Sequence[str], failure: str, folder: Path) -> None:
    # Packages on PYTHONPATH or in the user's folder would count as installed and be left out.
    variables = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")
    }
    environment = {**variables, "PYTHONNOUSERSITE": "1"}
    process = subprocess.run(line, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    if process.returncode:
        raise CommandError(f"{failure}:\n{(process.stderr or process.stdout).strip()}")
