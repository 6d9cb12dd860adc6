"""The doors by which other distributions come in: groups of entry points, read once in a process.

A row of a door is an entry point of its group. ``docs/inside/architecture.md`` says what a row of each is.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from sm.errors import StartError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

log = logging.getLogger(__name__)
#: The command that installs the extensions of this repository where the core is alone.
INSTALL_EXTENSIONS = "pip install 'trireme-serving[extensions]'"
#: The door of what watches a box, whose rows several layers ask: see :class:`sm.server.observers.Observer`.
OBSERVERS = "sm.observers"
#: The paths that they serve.
PATHS = frozenset(
    {"/v1/embeddings", "/v1/rerank", "/v1/models", "/v2/rerank", "/rerank", "/infinity/rerank", "/embed"}
    | {"/dashboard", "/dashboard/data"}
)


def advice(path: str) -> str:
    """Return what a caller reads of a path without a route: it may be one of the extensions'."""
    return f". The extensions have it: {INSTALL_EXTENSIONS}" if path in PATHS else ""


@cache
def load(group: str) -> tuple[Any, ...]:
    """Return the objects that the rows of a door name, in the order of the entry points' names.

    Raises :class:`StartError`, which names the distribution, if one cannot be imported.
    """
    rows = sorted(_every().select(group=group), key=lambda row: (row.name, row.value))
    return tuple(map(_load, rows))


def observers() -> tuple[Any, ...]:
    """Return the rows of :data:`OBSERVERS`, whose calls fail nothing that they watch."""
    return tuple(map(Shielded, load(OBSERVERS)))


class Shielded:
    """A row whose methods return None where they raise; that is logged. A StartError of ``open`` passes."""

    def __init__(self, row: Any) -> None:
        self._row = row

    def __str__(self) -> str:
        return f"{type(self._row).__module__}.{type(self._row).__qualname__}"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._row, name)
        return partial(self.call, name, found) if callable(found) else found

    def call(self, name: str, method: Callable[..., Any], *arguments: object) -> Any:
        """Call what is the row's; ``name`` is the method that a line of the log names."""
        try:
            return method(*arguments)
        except Exception as error:
            if name == "open" and isinstance(error, StartError):
                raise
            log.error("%s", self._failure(name, error))
            return None

    def _failure(self, name: str, error: Exception) -> str:
        # Without the text of the error, which may be a payload's.
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} in {last.filename}, line {last.lineno}"
        return f"the observer {self} failed: {name}: {where}"

    def describe(self) -> Any:
        try:
            return self._row.describe()
        except Exception as error:  # the supervisor has a log of its own
            return "error", self._failure("describe", error)

    def wrap(self, application: Any) -> Any:
        """Return the row's WSGI application around the router's. What it raises at a request is a 500."""
        return self.call("wrap", self._row.wrap, application) or application


def moved(address: str) -> ModuleType:
    """Import the module of an extension that people import at an address in the core.

    Raises :class:`ImportError` if the extension is not installed.
    """
    for row in _every().select(group="sm.moved_modules", name=address):
        module: ModuleType = _load(row)
        return module
    raise ImportError(f"{address} is part of an extension: {INSTALL_EXTENSIONS}", name=address)


@cache  # all doors from one read, which takes 10 ms
def _every() -> EntryPoints:
    from importlib.metadata import entry_points  # takes longer than all else that a short command imports

    return cast("EntryPoints", entry_points())  # Python 3.11 has another class, with the same select()


def _load(row: EntryPoint) -> Any:
    try:
        return row.load()
    except (Exception, SystemExit) as error:
        distribution = _distribution(row)
        raise StartError(
            f"The extension {distribution} cannot be imported: {row.value}, its entry point {row.name!r} in "
            f"{row.group}: {type(error).__name__}: {error}. Install one that fits ({INSTALL_EXTENSIONS} "
            f"for trireme-extensions), or remove it: pip uninstall {distribution.split()[0]}."
        ) from error


def _distribution(row: EntryPoint) -> str:
    """Return the name and version of the distribution that has a row."""
    return f"{row.dist.name} {row.dist.version}" if row.dist else "without a name"
