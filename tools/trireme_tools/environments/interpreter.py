"""Find and copy a Python: an environment that moves to another machine needs its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sm.errors import CommandError
from sm.repository import machine

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
class Interpreter:
    """A Python on this machine. ``libraries`` are the folders of its standard library, below ``prefix``."""

    version: str
    program: Path
    prefix: Path
    libraries: tuple[Path, ...]
    libpython: Path

    @classmethod
    def find(cls, python: str) -> Interpreter:
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
