"""Check whether Triton can run a model in an environment; each fault is a sentence."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sm.errors import CommandError
from sm.repository.machine import Stub

#: The command with which the backend starts a stub, with the environment's Python instead of the stub.
START_COMMAND = (
    'source "$0/bin/activate" && exec env LD_LIBRARY_PATH="$0/lib:$LD_LIBRARY_PATH" python3 -c "$1"'
)
PROBE = (
    # Prints the facts about the environment as JSON.
    "import json, sys, numpy; print(json.dumps({'python': '%d.%d' % sys.version_info[:2], "
    "'prefix': sys.prefix, 'numpy': numpy.__version__, 'at': numpy.__file__}))"
)
#: A version of the C++ runtime, in a library that needs it or in the runtime itself.
CXX_VERSION = re.compile(rb"GLIBCXX_3\.4\.(\d+)")


def check(folder: Path, stub: Stub) -> None:
    """Raise :class:`CommandError` if a model could not run in the environment."""
    for problem in (*_layout(folder, stub), *_runtime(folder, stub)):
        raise CommandError(problem)
    _interpreter(folder, stub)


def _layout(folder: Path, stub: Stub) -> Iterator[str]:
    if not (folder / "bin" / "activate").is_file():
        yield "The environment has no bin/activate, which the python backend sources."
    libraries = sorted(path.name for path in (folder / "lib").glob("libpython3.*.so.1.0"))
    if stub.libpython not in libraries:
        yield (
            f"The environment has {libraries[0] if libraries else 'no shared libpython'}, but Triton runs "
            f"models with Python {stub.python}."
        )


def _runtime(folder: Path, stub: Stub) -> Iterator[str]:
    """Check the environment's C++ runtime, if it has one: the stub loads it before the system's."""
    own_runtime = folder / "lib" / "libstdc++.so.6"
    runtime = own_runtime if own_runtime.exists() else system_runtime()
    newest_version = newest(runtime)
    for file in (stub.file, *sorted(folder.rglob("*.so*"))):
        if file.is_file() and file.resolve() != runtime.resolve() and newest(file) > newest_version:
            yield (
                f"{file.name} needs the C++ runtime of GLIBCXX_3.4.{newest(file)}; {runtime}, which would be "
                f"loaded, ends at 3.4.{newest_version}."
            )


def _interpreter(folder: Path, stub: Stub) -> None:
    process = subprocess.run(
        ["bash", "-c", START_COMMAND, str(folder), PROBE], capture_output=True, text=True, check=False
    )
    if process.returncode:
        lines = process.stderr.strip().splitlines() or ["it says nothing"]
        raise CommandError(
            f"The environment's Python cannot import numpy, as the python backend does: {lines[-1]}."
        )
    facts = json.loads(process.stdout)
    if facts["python"] != stub.python:
        raise CommandError(
            f"The environment's Python is {facts['python']}, but Triton runs models with "
            f"Python {stub.python}."
        )
    if stub.numpy == "numpy<2" and int(facts["numpy"].partition(".")[0]) >= 2:
        raise CommandError(
            f"The environment has NumPy {facts['numpy']}, with which Triton's wheel loses strings: "
            "require numpy<2."
        )
    for path in (facts["prefix"], facts["at"]):
        if not Path(path).resolve().is_relative_to(folder.resolve()):
            raise CommandError(f"The environment is incomplete: its Python uses {path}.")


def system_runtime() -> Path:
    """Return the C++ runtime that the loader uses."""
    ctypes.CDLL("libstdc++.so.6")
    lines = Path("/proc/self/maps").read_text().splitlines()
    return Path(next(line.split(maxsplit=5)[5] for line in lines if "/libstdc++.so.6" in line))


def newest(library: Path) -> int:
    """Return the highest GLIBCXX_3.4.N in a file; 0 if none."""
    return max((int(number) for number in CXX_VERSION.findall(library.read_bytes())), default=0)
