"""Find, import and unload client files.

A client is ``<folder>/<name>/client.py`` or ``<folder>/<name>.py`` with one concrete subclass of
:class:`~sm.client.base.Client`. Each is loaded as a package of its own, so that ``from .labels import …``
works and two clients may have modules of one name.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
import types
import zlib
from abc import ABCMeta
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard, cast

from sm.client.base import Client, Triton
from sm.code_folder import SCRIPT_NAME, CodeFolder
from sm.errors import StartError
from sm.plugins.toolkit import script_modules
from sm.plugins.toolkit.script_client import ToolkitClient
from sm.settings import HERE, PROGRAM

PACKAGE = "trireme_clients"


@dataclass(frozen=True)
class ClientSource:
    """A client's file, not loaded yet. A script of the toolkit's kind has a ``module`` to be imported as."""

    name: str
    file: Path
    module: str = ""

    @property
    def bundled(self) -> bool:
        """Whether it came with the box: such a client waits for its model, others insist on it."""
        return (HERE / "clients") in self.file.parents

    @property
    def home(self) -> Path:
        """The folder whose modules it may import by their plain names."""
        return self.file.parents[self.module.count(".")]

    @property
    def package(self) -> str:
        """The package it is loaded as: of its own, whatever other folder has its name."""
        return f"{PACKAGE}_{self.name}_{zlib.crc32(bytes(self.file)):08x}"

    @property
    def shown(self) -> str:
        """The file as people know it."""
        return str(self.file.relative_to(HERE) if HERE in self.file.parents else self.file)


def discover(folders: tuple[Path, ...], program: str = PROGRAM) -> Iterator[ClientSource]:
    """Every client in ``folders``, in the order of their names.

    Where ``program`` is a script of the toolkit's, the files beside it are its modules; so are those beside
    a ``client.py`` in the folder itself, as an archive of one model may have it.
    """
    for folder in folders:
        code = CodeFolder(folder, program)
        script, alone = code.script, folder / "client.py"
        if script:
            yield ClientSource(SCRIPT_NAME, script, code.module)
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            if path.name.startswith(("_", ".")):
                continue
            if (path / "client.py").is_file():
                yield ClientSource(path.name, path / "client.py")
            elif path.suffix == ".py" and not script and (path == alone or not alone.is_file()):
                yield ClientSource(path.stem, path)


def plain_names(found: ClientSource) -> AbstractContextManager[None]:
    """``import helpers`` finds what lies beside a user's client; a toolkit's script sees to that itself."""
    folder = found.file.name == "client.py" and not found.bundled and not found.module
    return script_modules.plain_names(found.home) if folder else nullcontext()


def load(found: ClientSource, triton: Triton, repository: Path) -> Client:
    """Import a client's file and make its one instance."""
    try:
        with plain_names(found):
            client = _instance(found, triton, repository)
        client.name = client.name or found.name
        return client
    except StartError as error:
        raise StartError(f"{found.shown}: {error}") from None
    except BaseException as error:  # also sys.exit() and KeyboardInterrupt: one client may end nobody else
        raise StartError(f"{found.shown}: {describe_failure(error, found.file)}") from error


def _instance(found: ClientSource, triton: Triton, repository: Path) -> Client:
    if found.module:
        return ToolkitClient(triton, found.home, repository, found.module)
    return _class_of(_import(found))(triton, found.file.parent, repository)


def unload(found: ClientSource) -> None:
    """Forget a client's modules. Whoever has an object of theirs keeps it."""
    package = found.package
    for loaded in [module for module in list(sys.modules) if f"{module}.".startswith(f"{package}.")]:
        sys.modules.pop(loaded, None)


def _import(found: ClientSource) -> types.ModuleType:
    """Load the file inside a package of its own, afresh."""
    unload(found)
    parent = types.ModuleType(found.package)
    parent.__path__ = [str(found.file.parent)]
    sys.modules[found.package] = parent
    return importlib.import_module(f"{found.package}.{found.file.stem}")


def _class_of(module: types.ModuleType) -> type[Client]:
    # A class first: another object may have an answer of its own to every question.
    clients = [value for value in vars(module).values() if _is_client(value)]
    kinds = [kind for kind in clients if kind.__module__ == module.__name__]
    concrete = [kind for kind in kinds if not inspect.isabstract(kind)]
    if len(concrete) == 1:
        return concrete[0]
    if concrete:
        raise StartError(
            f"it has {len(concrete)} clients ({', '.join(k.__name__ for k in concrete)}); one is expected."
        )
    if kinds:
        missing = ", ".join(sorted(kinds[0].__abstractmethods__))
        raise StartError(f"{kinds[0].__name__} lacks {missing}.")
    raise StartError("it has no subclass of sm.client.base.Client.")


def _is_client(value: object) -> TypeGuard[type[Client]]:
    # By its type: to Python 3.10 Sequence[int] is a class too, but not one to compare with.
    return issubclass(type(value), ABCMeta) and issubclass(cast("type", value), Client)


def describe_failure(error: BaseException, file: Path) -> str:
    """The error in one line, with the client's own line it came from."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    where = f"line {line}: " if line else ""
    said = str(error).splitlines()[0].rstrip(".") if str(error) else "no message"
    return f"{where}{type(error).__name__}: {said}."
