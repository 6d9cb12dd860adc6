"""``sm pack-env``: requirements become an environment that the python backend runs a model in."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import sys
import tarfile
from pathlib import Path

from sm.cache import Cache
from sm.errors import StartError
from sm.settings import Settings
from sm.tools.environments import checks, making
from sm.tools.environments.interpreter import Interpreter
from sm.tools.package import archive_writer
from sm.tools.package.contents import Contents
from sm.tools.progress import Progress
from sm.triton import server, wheel
from sm.triton.python_stub import Stub

#: In the environment: the hash of what it was made from.
MARK = ".made-from"
#: Another number when environments are made in another way.
MAKING = 1


def run(options: argparse.Namespace) -> int:
    """Make the environment unless it is in the cache, and put it where it is wanted."""
    settings, progress = Settings.read(os.environ), Progress(sys.stderr)
    source: Path = options.requirements or options.conda
    if not source.is_file():
        raise StartError(f"There is no file {source}.")
    triton = server.find(settings)
    stub = Stub.find(triton, options.python or "")
    place = options.out or Path(options.name)
    made = Environments(Cache(settings.cache), progress).make(source, bool(options.conda), stub)
    put(made, place, progress)
    results = Progress(sys.stdout)
    results.say(
        f"{place}, for Python {stub.python}; in the config.pbtxt of a model that has it in its folder:"
    )
    value = f'"$$TRITON_MODEL_DIRECTORY/{place.name}"'
    results.say(f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: {value} }} }}')
    if wheel.is_wheel(triton) and stub.python != wheel.VERSION:
        progress.say(
            f"this box runs Python {wheel.VERSION}: such a model also needs {stub.file} in its folder"
        )
    return 0


class Environments:
    """Those in the cache, by the hash of what they are made from."""

    def __init__(self, cache: Cache, progress: Progress) -> None:
        self._cache, self._progress = cache, progress

    def make(self, source: Path, conda: bool, stub: Stub) -> Path:
        """The environment's folder; nothing is made twice, and none is kept that Triton could not run."""
        with self._cache.locked(self._progress.say):
            place, new = self.make_locked(source, conda, stub)
            if not new:
                self._progress.say(f"{source.name} has not changed: the environment is in the cache")
        return place

    def make_locked(self, source: Path, conda: bool, stub: Stub) -> tuple[Path, bool]:
        """The same for who works in the cache already; whether it was made now."""
        base = None if conda else Interpreter.find(stub.python)
        key = identity(source, stub, base)
        place = self._cache.root / "environments" / key
        if (place / MARK).is_file():
            return place, False
        with self._cache.workshop() as folder:
            made, moved = folder / "made", folder / "moved"
            with self._progress.step(f"making the environment of {source.name}"):
                self._fill(made, source, base, stub)
            (made / MARK).write_text(key)
            # It must work in another place than the one it was made in.
            made.rename(moved)
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
            # copytree has a list of what went wrong: (from, to, why).
            why = error.args[0][-1][-1] if isinstance(error, shutil.Error) else error
            raise StartError(f"the environment cannot be made in {self._cache.root}: {why}.") from error


def identity(source: Path, stub: Stub, base: Interpreter | None) -> str:
    """A hash of the file, of the files it names, and of what it is made for and with."""
    parts = [MAKING, stub.python, stub.numpy, platform.machine(), base.version if base else "conda"]
    return hashlib.sha256(json.dumps([*parts, *_contents(source, set())]).encode()).hexdigest()


def _contents(source: Path, seen: set[Path]) -> list[str]:
    """Digests of a requirements file and, through ``-r``, ``-c`` and paths, of the files it names."""
    seen.add(source.resolve())
    digests = [hashlib.sha256(source.read_bytes()).hexdigest()]
    if source.suffix == ".whl":
        return digests
    for word in source.read_text().split():
        file = source.parent / word
        if file.is_file() and file.resolve() not in seen:
            digests += _contents(file, seen)
    return digests


def put(made: Path, place: Path, progress: Progress) -> None:
    """A copy at ``place``: a folder, or an archive if it is called so. An earlier one is replaced."""
    key = (made / MARK).read_text()
    if mark(place) == key:
        progress.say(f"{place} is what it should be")
    elif place.name.endswith(".tar.gz"):
        contents = Contents(made)
        entries = [entry for path in sorted(made.iterdir()) for entry in contents.of(path, path.name)]
        archive_writer.write(place, entries, progress)
    else:
        _put_folder(made, place)


def _put_folder(made: Path, place: Path) -> None:
    if place.exists() and mark(place) is None:
        raise StartError(f"{place} is there already, and no environment: nothing in it is touched.")
    staged = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        shutil.copytree(made, staged, symlinks=True)
        if place.exists():
            shutil.rmtree(place)
        staged.rename(place)
    except (OSError, shutil.Error) as error:
        raise StartError(f"{place} cannot be written: {error}.") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def mark(place: Path) -> str | None:
    """The hash in an environment's folder or archive; None if it is no environment of ours."""
    try:
        if place.is_dir():
            return (place / MARK).read_text()
        with tarfile.open(place) as opened:
            first = opened.next()
            stream = opened.extractfile(first) if first and first.name == MARK else None
            return stream.read().decode() if stream else None
    except (OSError, tarfile.TarError):
        return None
