"""Whether Triton can run a model in an environment; each fault is a sentence."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sm.errors import StartError
from sm.triton.python_stub import Stub

#: As the python backend starts the stub, with the environment's Python in the stub's place.
START = 'source "$0/bin/activate" && exec env LD_LIBRARY_PATH="$0/lib:$LD_LIBRARY_PATH" python3 -c "$1"'
ASK = (
    "import json, sys, numpy; print(json.dumps({'python': '%d.%d' % sys.version_info[:2], "
    "'prefix': sys.prefix, 'numpy': numpy.__version__, 'at': numpy.__file__}))"
)
#: What a library wants of the C++ runtime, or what the runtime has.
CXX = re.compile(rb"GLIBCXX_3\.4\.(\d+)")


def check(folder: Path, stub: Stub) -> None:
    """:class:`StartError` says why a model could not run there."""
    for problem in (*_layout(folder, stub), *_runtime(folder, stub)):
        raise StartError(problem)
    _interpreter(folder, stub)


def _layout(folder: Path, stub: Stub) -> Iterator[str]:
    if not (folder / "bin" / "activate").is_file():
        yield "The environment has no bin/activate, which the python backend sources."
    has = sorted(path.name for path in (folder / "lib").glob("libpython3.*.so.1.0"))
    if stub.libpython not in has:
        yield (
            f"The environment has {has[0] if has else 'no shared libpython'}, the stub is made for Python "
            f"{stub.python}: a stub is per minor version."
        )


def _runtime(folder: Path, stub: Stub) -> Iterator[str]:
    """The environment's C++ runtime, if it has one, is loaded before the system's: by the stub too."""
    own = folder / "lib" / "libstdc++.so.6"
    runtime = own if own.exists() else system_runtime()
    has = newest(runtime)
    for file in (stub.file, *sorted(folder.rglob("*.so*"))):
        if file.is_file() and file.resolve() != runtime.resolve() and newest(file) > has:
            yield (
                f"{file.name} needs the C++ runtime of GLIBCXX_3.4.{newest(file)}; {runtime}, which would be "
                f"loaded, ends at 3.4.{has}."
            )


def _interpreter(folder: Path, stub: Stub) -> None:
    done = subprocess.run(
        ["bash", "-c", START, str(folder), ASK], capture_output=True, text=True, check=False
    )
    if done.returncode:
        why = done.stderr.strip().splitlines() or ["it says nothing"]
        raise StartError(
            f"The environment's Python cannot import numpy, as the python backend does: {why[-1]}."
        )
    said = json.loads(done.stdout)
    if said["python"] != stub.python:
        raise StartError(
            f"The environment's Python is {said['python']}, the stub is made for {stub.python}: a stub is "
            "per minor version."
        )
    if stub.numpy == "numpy<2" and int(said["numpy"].partition(".")[0]) >= 2:
        raise StartError(
            f"The environment has NumPy {said['numpy']}; the stub of Triton's wheel loses strings on it: ask "
            "for numpy<2."
        )
    for path in (said["prefix"], said["at"]):
        if not Path(path).resolve().is_relative_to(folder.resolve()):
            raise StartError(f"The environment is not whole: its Python uses {path}.")


def system_runtime() -> Path:
    """The C++ runtime that the loader takes."""
    ctypes.CDLL("libstdc++.so.6")
    lines = Path("/proc/self/maps").read_text().splitlines()
    return Path(next(line.split(maxsplit=5)[5] for line in lines if "/libstdc++.so.6" in line))


def newest(library: Path) -> int:
    """The highest GLIBCXX_3.4.N that a file names; 0 if none."""
    return max((int(number) for number in CXX.findall(library.read_bytes())), default=0)
