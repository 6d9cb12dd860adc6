"""Where clients come from: each kind of source finds files, and makes a client class of one.

The core's own kind is ``<folder>/<name>/client.py`` or ``<folder>/<name>.py`` with one concrete subclass of
:class:`~sm.client.base.Client`. Other distributions add kinds by entry points of :data:`GROUP`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sm import entry_points
from sm.errors import StartError
from sm.repository.models import CLIENT_FILE, CodeFolder
from sm.settings import HERE, PROGRAM

#: Each entry point of this group names an instance of :class:`SourceKind`.
GROUP = "sm.client_sources"
#: The name of the core's own kind.
FILE = "file"
#: The page that shows how code of other systems is served.
PAGE = "docs/start/from-elsewhere.md"
PACKAGE = "trireme_clients"
#: The extensions' kind of a model without code, and its file: a box that served such a model without its task
#: would answer otherwise than its owner means.
TASK, TASK_FILE = "task", "task.json"
#: A subclass of :class:`~sm.client.base.Client`. The control plane imports this module, and no client's.
ClientClass = type[Any]
#: The module and the name of that class.
BASE = ("sm.client.base", "Client")
Place = TypeVar("Place", Path, CodeFolder)


@dataclass(frozen=True)
class ClientSource:
    """The file of a client."""

    name: str
    file: Path
    #: The name of the kind that makes its class.
    kind: str = FILE
    #: The folder whose modules the client imports by their plain names, if it is not the file's.
    folder: Path | None = None
    #: Files beside it that are its modules, and so are not clients.
    modules: frozenset[Path] = field(default=frozenset(), compare=False, repr=False)

    @property
    def row(self) -> SourceKind:
        """Its kind. Raises :class:`StartError` if nothing that is installed has it."""
        row = kinds().get(self.kind)
        if row is None:
            raise StartError(
                f"no extension has clients of the kind {self.kind!r}: {entry_points.INSTALL_EXTENSIONS}."
            )
        return row

    @property
    def is_bundled(self) -> bool:
        """True if the client comes with the box. If its model is not served it is left out; for other clients
        that is an error.
        """
        return (HERE / "clients") in self.file.parents

    @property
    def has_folder(self) -> bool:
        """True if the folder of its file is its own, with its samples."""
        return self.file.name == CLIENT_FILE or self.row.has_folder

    @property
    def takes_folder(self) -> bool:
        """True if it is a whole code folder."""
        return self.row.takes_folder

    @property
    def home(self) -> Path:
        """The folder whose modules the client imports by their plain names."""
        return self.folder or self.file.parent

    @property
    def package(self) -> str:
        """The name of the package that it is loaded as."""
        return f"{PACKAGE}_{self.name}_{zlib.crc32(bytes(self.file)):08x}"

    @property
    def display_path(self) -> str:
        """The file's path for messages."""
        return str(self.file.relative_to(HERE) if HERE in self.file.parents else self.file)


class SourceKind(ABC):
    """A kind of source. The control plane imports its module too: what makes clients is imported by
    :meth:`client_class` alone.
    """

    #: Names the kind; no other may have this name.
    name: str
    #: True if the folder of a file is the client's own, with its samples.
    has_folder = False
    #: True if such a client is a whole code folder: no Python file beside it is a client, and from an archive
    #: it reads the archive's own files.
    takes_folder = False

    def find(self, code: CodeFolder) -> Iterable[ClientSource]:  # noqa: ARG002  # by default none
        """Return the clients of this kind in a folder with clients. No code may run."""
        return ()

    def find_in_repository(self, repository: Path) -> Iterable[ClientSource]:  # noqa: ARG002  # by default none
        """Return the clients of this kind that are files in the models' folders. No code may run."""
        return ()

    def imports_beside(self, source: ClientSource) -> bool:
        """True if its code may import the modules beside it by their plain names: ``import helpers``."""
        return source.file.name == CLIENT_FILE

    @abstractmethod
    def client_class(self, source: ClientSource) -> ClientClass:
        """Make the class of a client. What it raises is reported with the file."""


class ClientFiles(SourceKind):
    """Python files with a subclass of :class:`~sm.client.base.Client`."""

    name = FILE

    def find(self, code: CodeFolder) -> Iterator[ClientSource]:
        for file in code.files():
            yield ClientSource(name_of(file, code), file)

    def client_class(self, source: ClientSource) -> ClientClass:
        """Import the file. Each is a package of its own: two may have modules of one name."""
        return find_class(import_file(source))


def kinds() -> Mapping[str, SourceKind]:
    """Return the installed kinds by name. The core's own is the last: it takes any file of Python.

    Raises :class:`StartError` for an extension that cannot be imported, and for two kinds of one name.
    """
    rows: list[SourceKind] = [*entry_points.load(GROUP), ClientFiles()]
    by_name = {row.name: row for row in rows}
    if len(by_name) < len(rows):
        names = ", ".join(row.name for row in rows)
        raise StartError(f"Two extensions have a client source of one name ({names}): remove one of them.")
    return by_name


def name_of(file: Path, code: CodeFolder) -> str:
    """Return the name of the client in a Python file of a code folder."""
    return file.stem if file.parent == code.folder else file.parent.name


def discover(
    folders: Iterable[Path], program: str = PROGRAM, is_archive: bool = False
) -> Iterator[ClientSource]:
    """Find every client in ``folders``.

    Args:
        folders: Where clients are.
        program: The file of a client in them that is its folder's program.
        is_archive: True for the code folder of an archive for multi-model mode.

    Raises:
        StartError: A kind of an extension fails.
    """
    for folder in folders:
        code, taken = CodeFolder(folder, program, is_archive), set[Path]()
        for kind in kinds().values():
            for source in _ask(kind, kind.find, code):
                if source.file not in taken:
                    taken |= {source.file, *source.modules}
                    yield source


def discover_in_models(repository: Path, sources: Iterable[ClientSource]) -> Iterator[ClientSource]:
    """Find the models of a repository that come with a client's file; one of ``sources`` goes first."""
    own_clients = {source.name for source in sources if not source.is_bundled}
    for kind in kinds().values():
        for source in _ask(kind, kind.find_in_repository, repository):
            if source.name not in own_clients:
                yield source
    if TASK not in kinds() and (file := next(repository.glob(f"*/{TASK_FILE}"), None)):
        raise StartError(f"{file}: nothing that is installed reads it: {entry_points.INSTALL_EXTENSIONS}.")


def _ask(
    kind: SourceKind, find: Callable[[Place], Iterable[ClientSource]], place: Place
) -> list[ClientSource]:
    try:
        return list(find(place))
    except Exception as error:
        raise StartError(
            f"The client source {kind.name!r} fails in {place}: {type(error).__name__}: {error}."
        ) from error


def derive(base: ClientClass, **attributes: object) -> ClientClass:
    """Return a subclass with these attributes, and with the name and documentation of ``base``."""
    same = {"__doc__": base.__doc__, "__module__": base.__module__}
    return type(base.__name__, (base,), {**same, **attributes})


def import_file(source: ClientSource) -> types.ModuleType:
    """Load the file of a client again, as a module of its own package."""
    unload(source)
    parent = types.ModuleType(source.package)
    parent.__path__ = [str(source.file.parent)]
    sys.modules[source.package] = parent
    return importlib.import_module(f"{source.package}.{source.file.stem}")


def unload(source: ClientSource) -> None:
    """Remove a client's modules from ``sys.modules``. Objects that are still referenced stay alive."""
    package = source.package
    for loaded in [module for module in list(sys.modules) if f"{module}.".startswith(f"{package}.")]:
        sys.modules.pop(loaded, None)


def own_clients(module: types.ModuleType) -> list[ClientClass]:
    """Return the subclasses of :class:`~sm.client.base.Client` that a module defines."""
    # Only classes are inspected: other objects may define ``__getattr__`` with side effects.
    client_classes: list[ClientClass] = [value for value in vars(module).values() if _is_client(value)]
    return [candidate for candidate in client_classes if candidate.__module__ == module.__name__]


def find_class(module: types.ModuleType) -> ClientClass:
    """Return the one client of a module. Raises :class:`StartError` if it has none, or several."""
    own_classes = own_clients(module)
    concrete = [candidate for candidate in own_classes if not inspect.isabstract(candidate)]
    if len(concrete) == 1:
        return concrete[0]
    if concrete:
        raise StartError(
            f"it has {len(concrete)} clients ({', '.join(k.__name__ for k in concrete)}); one is expected."
        )
    if own_classes:
        missing_methods = ", ".join(sorted(own_classes[0].__abstractmethods__))
        raise StartError(f"{own_classes[0].__name__} lacks {missing_methods}.")
    remedy = "" if len(kinds()) > 1 else f" {entry_points.INSTALL_EXTENSIONS} serves some of it unchanged."
    raise StartError(f"it has no subclass of sm.client.base.Client. Code of other systems: {PAGE}.{remedy}")


def _is_client(value: object) -> bool:
    return isinstance(value, type) and BASE in {(base.__module__, base.__name__) for base in value.__mro__}
