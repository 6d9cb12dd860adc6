"""Find, import and unload client files.

A client is ``<folder>/<name>/client.py`` or ``<folder>/<name>.py`` with one concrete subclass of
:class:`~sm.client.base.Client`. Each is loaded as a package of its own, so that ``from .labels import …``
works and two clients may have modules of the same name. A model with a ``task.json`` needs no file: the
class of its task is its client.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeGuard

from pydantic import Field, InstanceOf, TypeAdapter, ValidationError

from sm.client.base import Client, TensorClient, Triton
from sm.client.payloads import Payload
from sm.client.results import ResultKind
from sm.client.tasks.task_file import TASK_FILE, task_class
from sm.errors import StartError
from sm.plugins import ported
from sm.plugins.toolkit import code_imports
from sm.plugins.toolkit.scripts import ToolkitClient
from sm.repository.models import SCRIPT_NAME, CodeFolder
from sm.settings import HERE, PROGRAM


def check_declarations(client_class: type[Client]) -> None:
    """Raise :class:`StartError` for an attribute of a wrong type, such as a method called ``samples``."""
    if issubclass(client_class, TensorClient) and not hasattr(client_class, "model"):
        raise StartError(
            f"{client_class.__name__}.model must be the name of a Triton model, but it is not set."
        )
    ready = inspect.getattr_static(client_class, "ready")
    if not inspect.isfunction(ready) or inspect.iscoroutinefunction(ready):
        raise StartError(f"{client_class.__name__}.ready must be a method: def ready(self) -> bool | str.")
    for attributes, kind, expected in DECLARATIONS:
        adapter = TypeAdapter[Any](kind)
        for attribute in attributes.split():
            value = inspect.getattr_static(client_class, attribute, None)
            is_method = inspect.isfunction(value)
            if value is None or (hasattr(type(value), "__get__") and not is_method):
                continue  # it is not set, or an instance computes it, as a property does
            try:
                adapter.validate_python(value)
            except ValidationError:
                found = "a method" if is_method else repr(value)[:100]
                raise StartError(
                    f"{client_class.__name__}.{attribute} must be {expected}, but it is {found}."
                ) from None


#: Attributes of a client's class, their type, and how an error describes it.
DECLARATIONS: tuple[tuple[str, Any, str], ...] = (
    ("name replaces model", str, "a string"),
    ("models samples aliases", tuple[str, ...], "a tuple of strings, as ('one',)"),
    ("inputs outputs", Mapping[str, object], "a dictionary, as {'input': ('FP32', (3, 224, 224))}"),
    ("payload", type[Payload], "a subclass of Payload"),
    ("result", InstanceOf[ResultKind], "a result kind, as Classes()"),
    ("max_batch", Annotated[int, Field(ge=1, strict=True)], "a number of records, from 1"),
    ("max_wait_ms", Annotated[float, Field(ge=0, strict=True)], "a number of milliseconds, from 0"),
)
PACKAGE = "trireme_clients"


@dataclass(frozen=True)
class ClientSource:
    """The file of a client. ``module``: the name to import a toolkit script as; empty for other clients."""

    name: str
    file: Path
    module: str = ""

    @property
    def is_bundled(self) -> bool:
        """True if the client comes with the box. If its model is not served it is left out; for other clients
        that is an error.
        """
        return (HERE / "clients") in self.file.parents

    @property
    def has_folder(self) -> bool:
        """True if the folder of its file is its own, with its samples."""
        return self.file.name in ("client.py", TASK_FILE)

    @property
    def home(self) -> Path:
        """The folder whose modules the client imports by their plain names."""
        return self.file.parents[self.module.count(".")]

    @property
    def package(self) -> str:
        """The name of the package that it is loaded as."""
        return f"{PACKAGE}_{self.name}_{zlib.crc32(bytes(self.file)):08x}"

    @property
    def display_path(self) -> str:
        """The file's path for messages."""
        return str(self.file.relative_to(HERE) if HERE in self.file.parents else self.file)


def discover(folders: tuple[Path, ...], program: str = PROGRAM) -> Iterator[ClientSource]:
    """Find every client in ``folders``, sorted by name.

    If ``program`` is a toolkit script, the files beside it are its modules. The same holds for files beside a
    ``client.py`` in the folder itself, as an archive of one model may have it.
    """
    for folder in folders:
        code = CodeFolder(folder, program)
        script = code.script
        has_single_client = (folder / "client.py").is_file()
        if script:
            yield ClientSource(SCRIPT_NAME, script, code.module)
        modules = ported.modules_of(folder)
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            if path.name.startswith(("_", ".")) or path.name in {f"{module}.py" for module in modules}:
                continue
            if (path / "client.py").is_file():
                yield ClientSource(path.name, path / "client.py")
            elif path.suffix == ".py" and not script and (path.name == "client.py" or not has_single_client):
                yield ClientSource(path.stem, path)


def discover_tasks(repository: Path, sources: Iterable[ClientSource]) -> Iterator[ClientSource]:
    """Find the models of a repository that are served by their task's class; a client's file goes first."""
    own_clients = {source.name for source in sources if not source.is_bundled}
    for file in sorted(repository.glob(f"*/{TASK_FILE}")):
        if file.parent.name not in own_clients:
            yield ClientSource(file.parent.name, file)


def plain_names(source: ClientSource) -> AbstractContextManager[None]:
    """Make the modules beside a user's client importable as ``import helpers``, and watch that its code
    returns.

    Raises:
        StartError: It has not returned before.
        DeadlinePassed, CallerGone: A request waited too long for another client's code.
    """
    has_folder = source.module or source.file.name == "client.py"
    if not source.is_bundled and (has_folder or ported.is_ported(source.file)):
        return code_imports.plain_names(source.home)
    return code_imports.watched(source.file)


def load(source: ClientSource, triton: Triton, repository: Path) -> Client:
    """Import a client's file and create its one instance."""
    with plain_names(source):
        try:
            client = _create(source, triton, repository)
        except StartError as error:
            raise StartError(f"{source.display_path}: {error}") from None
        except BaseException as error:  # also a client's sys.exit() and KeyboardInterrupt
            raise StartError(f"{source.display_path}: {describe_failure(error, source.file)}") from error
    client.name = client.name or source.name
    return client


def _create(source: ClientSource, triton: Triton, repository: Path) -> Client:
    if source.module:
        return ToolkitClient(triton, source.home, repository, source.module)
    if source.file.name == TASK_FILE:
        task = task_class(source.file)
        # The model may have the name of a client that comes with the box.
        attributes: dict[str, object] = {"model": source.name, "replaces": source.name}
        attributes |= {"__doc__": task.__doc__, "__module__": task.__module__}
        client: Client = type(task.__name__, (task,), attributes)(triton, source.file.parent, repository)
        return client
    return _find_class(_import(source))(triton, source.file.parent, repository)


def unload(source: ClientSource) -> None:
    """Remove a client's modules from ``sys.modules``. Objects that are still referenced stay alive."""
    package = source.package
    for loaded in [module for module in list(sys.modules) if f"{module}.".startswith(f"{package}.")]:
        sys.modules.pop(loaded, None)


def _import(source: ClientSource) -> types.ModuleType:
    """Load the file again, as a module of its own package."""
    unload(source)
    parent = types.ModuleType(source.package)
    parent.__path__ = [str(source.file.parent)]
    sys.modules[source.package] = parent
    return importlib.import_module(f"{source.package}.{source.file.stem}")


def _find_class(module: types.ModuleType) -> type[Client]:
    # Only classes are inspected: other objects may define ``__getattr__`` with side effects.
    client_classes = [value for value in vars(module).values() if _is_client(value)]
    own_classes = [candidate for candidate in client_classes if candidate.__module__ == module.__name__]
    concrete = [candidate for candidate in own_classes if not inspect.isabstract(candidate)]
    if len(concrete) == 1:
        check_declarations(concrete[0])
        return concrete[0]
    if concrete:
        raise StartError(
            f"it has {len(concrete)} clients ({', '.join(k.__name__ for k in concrete)}); one is expected."
        )
    if own_classes:
        missing_methods = ", ".join(sorted(own_classes[0].__abstractmethods__))
        raise StartError(f"{own_classes[0].__name__} lacks {missing_methods}.")
    if adapted := ported.adapt(module):
        return adapted
    raise StartError(f"it has no subclass of sm.client.base.Client. Code of other systems: {ported.PAGE}.")


def _is_client(value: object) -> TypeGuard[type[Client]]:
    return isinstance(value, type) and issubclass(value, Client)


def describe_failure(error: BaseException, file: Path) -> str:
    """Format the error in one line, with the line of the client that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    location = f"line {line}: " if line else ""
    message = str(error).splitlines()[0].rstrip(".") if str(error) else "no message"
    is_foreign = isinstance(error, ModuleNotFoundError) and error.name in ported.FOREIGN_MODULES
    hint = f" {ported.PAGE} shows how such code is served here." if is_foreign else ""
    return f"{location}{type(error).__name__}: {message}.{hint}"
