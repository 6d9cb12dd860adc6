"""Choose the Python of ``.venv``: the stubs in Triton's wheel run 3.11 to 3.13 and need its shared library.

set_up.py uses this before anything is installed: it imports the standard library alone, and runs on
Python 3.9.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Optional, Tuple  # noqa: UP035  (a dataclass's fields, on Python 3.9)

#: The minor versions for which Triton's wheel has a stub and the locks have packages, the newest first.
SUPPORTED = (13, 12, 11)
#: The first that the router itself runs on, with another Triton.
OLDEST = 11
#: The word for ``make PYTHON=`` that asks for an interpreter of uv's.
MANAGED = "uv"
#: Runs in each interpreter. The folders are those of sm.repository.machine.libpython.
PROBE = """
import importlib.util, json, os, subprocess, sys, sysconfig
name = "libpython%d.%d.so.1.0" % sys.version_info[:2]
folders = [sysconfig.get_config_var("LIBDIR"), os.path.join(sys.base_prefix, "lib")]
for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
    if os.path.exists(program):
        for line in subprocess.run([program, "-p"], stdout=subprocess.PIPE).stdout.decode().splitlines():
            if name in line and " => " in line:
                folders.append(os.path.dirname(line.rpartition(" => ")[2]))
        break
print(json.dumps({
    "minor": sys.version_info[1] if sys.version_info[0] == 3 else 0,
    "version": "%d.%d.%d" % sys.version_info[:3],
    "usual": sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED"),
    "path": sys.executable,
    "base": sys.base_prefix,
    "library": any(folder and os.path.isfile(os.path.join(folder, name)) for folder in folders),
    "venv": bool(importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")),
    "pip": bool(importlib.util.find_spec("pip")),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python on this machine."""

    minor: int
    version: str
    #: CPython with its lock: the stubs embed no other.
    usual: bool
    path: str
    base: str
    #: True if it has the shared library that a stub needs.
    library: bool
    #: True if it can make a virtual environment with pip.
    venv: bool
    pip: bool

    @property
    def is_supported(self) -> bool:
        """True if Triton's wheel has a stub for it."""
        return self.usual and self.minor in SUPPORTED

    @property
    def is_system(self) -> bool:
        """True if it is of the distribution's packages."""
        return self.base == "/usr"

    def __str__(self) -> str:
        return f"Python {self.version} ({self.path})"


def probe(program: str) -> Optional[Interpreter]:  # noqa: UP045
    """Look at an interpreter; None if it does not run, as the programs of pyenv may not."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        process = subprocess.run(
            [path, "-I", "-c", PROBE], capture_output=True, text=True, timeout=30, check=False
        )
        return Interpreter(**json.loads(process.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return None


@dataclass(frozen=True)
class InterpreterChoice:
    """The interpreter to take, None for one that uv fetches, and the reason if it is not python3."""

    interpreter: Optional[Interpreter]  # noqa: UP045
    reason: str
    #: The interpreters that run here, for the messages and to install uv with.
    present: Tuple[Interpreter, ...]  # noqa: UP006


def choose(requested: str, own_triton: bool) -> InterpreterChoice:
    """Choose among what this machine has.

    Args:
        requested: The program that ``make PYTHON=`` names; empty for the first that fits.
        own_triton: Triton is not the wheel's, so a newer Python may be requested.
    """
    present = tuple(found for found in map(probe, ("python3", *_names())) if found)
    if requested == MANAGED:
        return InterpreterChoice(None, "", present)
    if requested:
        found = probe(requested)
        if found is None:
            raise Unusable(f"PYTHON={requested} is not a Python that runs here.")
        if not found.is_supported and not (own_triton and found.usual and found.minor >= OLDEST):
            raise Unusable(
                f"PYTHON={requested} is {found.version}, and Triton's wheel has programs for Python 3.11 "
                f"to 3.13 "
                "only: leave PYTHON out, and make finds one."
            )
        return InterpreterChoice(found, "", (found, *present))
    fitting = [found for found in present if found.is_supported]
    if not fitting:
        return InterpreterChoice(None, _why_not(present), present)
    best = next((found for found in fitting if found.library and found.venv), fitting[0])
    reason = f"python3 is {present[0].version}, which does not fit" if best is not present[0] else ""
    return InterpreterChoice(best, reason, present)


def _why_not(present: tuple[Interpreter, ...]) -> str:
    versions = ", ".join(dict.fromkeys(found.version for found in present))
    return f"Triton's wheel has programs for Python 3.11 to 3.13, and this machine has {versions or 'none'}"


def _names() -> Iterator[str]:
    return (f"python3.{minor}" for minor in SUPPORTED)


class Unusable(Exception):
    """Something that must be there is not; the text is one sentence with the next step."""


def find_managed(uv: str, environment: Mapping[str, str]) -> Optional[Interpreter]:  # noqa: UP045
    """Return the interpreter that uv has fetched; None if it has none."""
    command = [
        uv,
        "python",
        "find",
        "--managed-python",
        "--no-python-downloads",
        "--no-config",
        f"3.{SUPPORTED[0]}",
    ]
    process = subprocess.run(
        command, env=dict(environment), capture_output=True, text=True, check=False, cwd=os.sep
    )
    return probe(process.stdout.strip()) if process.returncode == 0 else None


def fetch_managed(uv: str, environment: Mapping[str, str]) -> str:
    """Fetch an interpreter with uv. Returns the reason of a failure, or an empty text."""
    command = [uv, "python", "install", "--no-bin", "--no-config", "--no-progress", f"3.{SUPPORTED[0]}"]
    variables = {**environment, "UV_HTTP_RETRIES": "1"}
    process = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, cwd=os.sep)
    if process.returncode == 0:
        return ""
    # uv's last cause is the nearest to the reason.
    lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
    return lines[-1].partition("cause: ")[2].rstrip(".") or lines[-1] if lines else "uv gave no reason"
