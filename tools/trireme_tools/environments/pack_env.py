"""``sm pack-env``: create an environment from requirements in which the python backend runs a model."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tarfile
from pathlib import Path

from sm.commands.progress import Progress
from sm.errors import CommandError
from sm.repository import machine
from sm.repository.cache import Cache
from sm.repository.machine import Stub
from sm.settings import Settings
from trireme_tools.environments import checks, making
from trireme_tools.environments.interpreter import Interpreter
from trireme_tools.package import archive_writer
from trireme_tools.package.contents import Contents


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
        type=version,
        metavar="3.12",
        help="the Python version (default: that of this machine's Triton)",
    )
    command.add_argument(
        "-o", "--out", type=Path, metavar="PATH", help="a folder, or a file that ends in .tar.gz (./NAME)"
    )


def version(text: str) -> str:
    if not re.fullmatch(r"3\.\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a version such as 3.12")
    return text


#: A file in the environment with the hash of its inputs.
MARK_FILE = ".made-from"
#: Increase it when environments are created differently.
FORMAT_VERSION = 1


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
        base = None if conda else Interpreter.find(stub.python)
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
            checks.check(moved, stub)
            self._cache.place(moved, place)
        return place, True

    def _fill(self, folder: Path, source: Path, base: Interpreter | None, stub: Stub) -> None:
        try:
            if base:
                making.from_wheels(folder, source, base, stub)
            else:
                making.from_conda(folder, source)
        except OSError as error:
            # copytree raises a list of errors: (source, target, reason).
            reason = error.args[0][-1][-1] if isinstance(error, shutil.Error) else error
            raise CommandError(f"the environment cannot be made in {self._cache.root}: {reason}.") from error


def identity(source: Path, stub: Stub, base: Interpreter | None) -> str:
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
