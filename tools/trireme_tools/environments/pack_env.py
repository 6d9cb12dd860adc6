"""``sm pack-env``: create an environment from requirements in which the python backend runs a model."""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from sm.errors import CommandError
from sm.repository import machine
from sm.settings import Settings
from trireme_tools.arguments import matching
from trireme_tools.cache import Cache
from trireme_tools.environments import making
from trireme_tools.environments.making import BasePython
from trireme_tools.environments.stub import Stub
from trireme_tools.package import archive_writer
from trireme_tools.package.contents import Contents
from trireme_tools.progress import Progress

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


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the environment's name")
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--requirements", type=Path, metavar="FILE", help="a pip requirements file; installed from wheels"
    )
    source.add_argument(
        "--conda", type=Path, metavar="ENV.yml", help="a conda environment file; needs conda-pack"
    )
    command.add_argument(
        "--python",
        type=matching(r"3\.\d+", "a version such as 3.12"),
        metavar="3.12",
        help="the Python version (default: that of this machine's Triton)",
    )
    command.add_argument(
        "-o", "--out", type=Path, metavar="PATH", help="a folder, or a file that ends in .tar.gz (./NAME)"
    )


#: A file in the environment with the hash of its inputs.
MARK_FILE = ".made-from"
#: Increase it when environments are created differently.
FORMAT_VERSION = 2


def run(options: argparse.Namespace) -> int:
    """Create the environment unless the cache has it, and copy it to its destination."""
    settings, progress = Settings.read(os.environ), Progress(sys.stderr)
    source: Path = options.requirements or options.conda
    if not source.is_file():
        raise CommandError(f"There is no file {source}.")
    triton = machine.find_server(settings)
    stub = Stub.find(triton, options.python or "")
    place = options.out or Path(options.name)
    environment = Environments(Cache(settings.cache), progress).make(source, bool(options.conda), stub)
    copy_environment(environment, place, progress)
    results = Progress(sys.stdout)
    results.say(
        f"{place}, for Python {stub.python}; in the config.pbtxt of a model that has it in its folder:"
    )
    value = f'"$$TRITON_MODEL_DIRECTORY/{place.name}"'
    results.say(f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: {value} }} }}')
    if machine.is_wheel(triton) and stub.python != machine.VERSION:
        progress.say(
            f"this box runs Python {machine.VERSION}: such a model also needs {stub.file} in its folder"
        )
    return 0


class Environments:
    """The environments in the cache, by the hash of their inputs."""

    def __init__(self, cache: Cache, progress: Progress) -> None:
        self._cache, self._progress = cache, progress

    def make(self, source: Path, conda: bool, stub: Stub) -> Path:
        """Return the environment's folder. It is created once, and kept only if Triton can run it."""
        with self._cache.locked(self._progress.say):
            place, new = self.make_locked(source, conda, stub)
            if not new:
                self._progress.say(f"{source.name} has not changed: the environment is in the cache")
        return place

    def make_locked(self, source: Path, conda: bool, stub: Stub) -> tuple[Path, bool]:
        """Do the same for a caller that holds the cache's lock; also return whether it was created now."""
        base = None if conda else BasePython.find(stub.python)
        key = identity(source, stub, base)
        place = self._cache.root / "environments" / key
        if (place / MARK_FILE).is_file():
            return place, False
        with self._cache.scratch_folder() as folder:
            unfinished, moved = folder / "made", folder / "moved"
            with self._progress.step(f"making the environment of {source.name}"):
                self._fill(unfinished, source, base, stub)
            (unfinished / MARK_FILE).write_text(key)
            # Check it in another folder than the one in which it was created.
            unfinished.rename(moved)
            check(moved, stub)
            self._cache.place(moved, place)
        return place, True

    def _fill(self, folder: Path, source: Path, base: BasePython | None, stub: Stub) -> None:
        try:
            if base:
                making.from_wheels(folder, source, base, stub)
            else:
                making.from_conda(folder, source)
            if stub.bundled_libpython:
                # A stub in the model's folder would otherwise run the wheel's copy of CPython.
                (folder / "lib" / stub.bundled_libpython).symlink_to(stub.libpython)
        except OSError as error:
            # copytree raises a list of errors: (source, target, reason).
            reason = error.args[0][-1][-1] if isinstance(error, shutil.Error) else error
            raise CommandError(f"the environment cannot be made in {self._cache.root}: {reason}.") from error


def identity(source: Path, stub: Stub, base: BasePython | None) -> str:
    """Return a hash of the file, of the files that it includes, and of the Python and the platform."""
    parts = [FORMAT_VERSION, stub.python, stub.numpy, platform.machine(), base.version if base else "conda"]
    return hashlib.sha256(json.dumps([*parts, *_contents(source, set())]).encode()).hexdigest()


def _contents(source: Path, visited: set[Path]) -> list[str]:
    """Return digests of a requirements file and of the files that it names with ``-r``, ``-c`` and paths."""
    visited.add(source.resolve())
    digests = [hashlib.sha256(source.read_bytes()).hexdigest()]
    if source.suffix == ".whl":
        return digests
    for word in source.read_text().split():
        file = source.parent / word
        if file.is_file() and file.resolve() not in visited:
            digests += _contents(file, visited)
    return digests


def copy_environment(environment: Path, place: Path, progress: Progress) -> None:
    """Copy to ``place``: a folder, or an archive if its name says so. An earlier one is replaced."""
    key = (environment / MARK_FILE).read_text()
    if read_mark(place) == key:
        progress.say(f"{place} is what it should be")
    elif place.name.endswith(".tar.gz"):
        contents = Contents(environment)
        entries = [entry for path in sorted(environment.iterdir()) for entry in contents.of(path, path.name)]
        archive_writer.write(place, entries, progress)
    else:
        _put_folder(environment, place)


def _put_folder(environment: Path, place: Path) -> None:
    if place.exists() and read_mark(place) is None:
        raise CommandError(f"{place} exists and is not an environment: it is left unchanged.")
    staged = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        shutil.copytree(environment, staged, symlinks=True)
        if place.exists():
            shutil.rmtree(place)
        staged.rename(place)
    except (OSError, shutil.Error) as error:
        raise CommandError(f"{place} cannot be written: {error}.") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def read_mark(place: Path) -> str | None:
    """Return the hash in an environment's folder or archive; None if it is not one of ours."""
    try:
        if place.is_dir():
            return (place / MARK_FILE).read_text()
        with tarfile.open(place) as archive:
            first = archive.next()
            stream = archive.extractfile(first) if first and first.name == MARK_FILE else None
            return stream.read().decode() if stream else None
    except (OSError, tarfile.TarError):
        return None
