"""A code folder's modules under their plain names: ``import helpers`` finds ``code/helpers.py``.

That is how the toolkit has it, and how pickles name their classes. Python knows one module of a name,
so what another folder has under the same name is taken out while one is loaded; whoever imported it
before keeps it.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

#: Stands in for the toolkit where it is not installed.
STAND_IN = str(Path(__file__).parent / "stand_in")
#: The folders that scripts of this process came from.
_known: set[Path] = set()
_loading = threading.RLock()
#: The folders that whoever holds the lock is loading from.
_inside: list[Path] = []


@contextmanager
def plain_names(folder: Path) -> Iterator[None]:
    """Import from ``folder`` first, everything in it afresh; one folder at a time."""
    with _loading:
        if folder in _inside:
            yield
            return
        _known.add(folder)
        _make_way(folder)
        places = [str(place) for place in (folder, folder / "lib") if place.is_dir()]
        gone = {known for known in _known if not known.is_dir()}
        old = {str(place) for known in gone for place in (known, known / "lib")}
        others = [entry for entry in sys.path if entry not in {*places, *old, STAND_IN}]
        sys.path[:] = [*places, *others, STAND_IN]
        _known.difference_update(gone)
        importlib.invalidate_caches()
        _inside.append(folder)
        try:
            yield
        finally:
            _inside.pop()


def forget(folder: Path) -> None:
    """Nothing is loaded from ``folder`` any more."""
    with _loading:
        gone = [name for name, module in list(sys.modules.items()) if _home(module) == folder]
        for name in gone:
            del sys.modules[name]
        _known.discard(folder)
        sys.path[:] = [entry for entry in sys.path if entry not in (str(folder), str(folder / "lib"))]
        for place in (folder, folder / "lib"):
            sys.path_importer_cache.pop(str(place), None)


def _make_way(folder: Path) -> None:
    """Forget ``folder``'s modules, those in the way of its names, and those whose files are gone."""
    names = {path.stem for place in (folder, folder / "lib") for path in place.glob("*")}
    for name, module in list(sys.modules.items()):
        home = _home(module)
        if home and (home == folder or name.partition(".")[0] in names or not home.is_dir()):
            del sys.modules[name]


def _home(module: ModuleType) -> Path | None:
    """The code folder that a module came from."""
    places = [getattr(module, "__file__", None) or "", *map(str, getattr(module, "__path__", ()))]
    # The nearest: one code folder may lie in another.
    parents = (parent for place in places if place for parent in Path(place).parents)
    return next((parent for parent in parents if parent in _known), None)
