"""Import the modules of a code folder under their plain names: ``import helpers``.

That is how the toolkit has it, and how pickles name their classes. Python knows one module of a name,
so what another folder has under the same name is taken out while one is loaded; whoever imported it
before keeps it.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

#: Stands in for the toolkit where it is not installed.
STAND_IN = str(Path(__file__).parent / "stand_in")
#: Where Python itself has the class of a namespace package's path. Other objects are not iterated over.
PATH_CLASSES = ("_frozen_importlib_external", "importlib._bootstrap_external")
#: The folders that scripts of this process came from.
_known: set[Path] = set()
#: The folders of objects that a file of theirs put into ``sys.modules`` in its own place: nothing about such
#: an object says where it came from.
_replaced: dict[str, tuple[object, Path]] = {}
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
        _remove_foreign_module(folder)
        places = [str(place) for place in (folder, folder / "lib") if place.is_dir()]
        gone = {known for known in _known if not known.is_dir()}
        old = {str(place) for known in gone for place in (known, known / "lib")}
        others = [entry for entry in sys.path if entry not in {*places, *old, STAND_IN}]
        sys.path[:] = [*places, *others, STAND_IN]
        _known.difference_update(gone)
        importlib.invalidate_caches()
        _inside.append(folder)
        before = dict(sys.modules)
        try:
            yield
        finally:
            _inside.pop()
            _note_replaced(folder, before)


def forget_modules(folder: Path) -> None:
    """Nothing is loaded from ``folder`` any more."""
    with _loading:
        _remove([name for name, home in _homes().items() if home == folder])
        _known.discard(folder)
        sys.path[:] = [entry for entry in sys.path if entry not in (str(folder), str(folder / "lib"))]
        for place in (folder, folder / "lib"):
            sys.path_importer_cache.pop(str(place), None)


def _remove_foreign_module(folder: Path) -> None:
    """Forget ``folder``'s modules, those in the way of its names, and those whose files are gone."""
    names = _names(folder)
    _remove(
        [
            name
            for name, home in _homes().items()
            if home == folder or name.partition(".")[0] in names or not home.is_dir()
        ]
    )


def _names(folder: Path) -> set[str]:
    """What can be imported from ``folder``."""
    return {path.stem for place in (folder, folder / "lib") for path in place.glob("*")}


def _remove(names: list[str]) -> None:
    for name in names:
        sys.modules.pop(name, None)
        _replaced.pop(name, None)


def _homes() -> dict[str, Path]:
    """The code folder of each module that came from one.

    All are found before any is removed: the path of a namespace package asks for its parent.
    """
    found = {name: _home(name, module) for name, module in list(sys.modules.items())}
    return {name: home for name, home in found.items() if home}


def _home(name: str, module: object) -> Path | None:
    """The code folder that a module came from."""
    replaced = _replaced.get(name)
    if replaced and replaced[0] is module:
        return replaced[1]
    # The nearest: one code folder may lie in another.
    parents = (parent for place in _places(module) for parent in Path(place).parents)
    return next((parent for parent in parents if parent in _known), None)


def _places(module: object) -> list[str]:
    """The file and the folders of a module, as its import left them.

    Anything may lie in ``sys.modules``: None, or an object that answers every attribute, with something that
    fails or never ends. So no attribute is asked for: what an import sets is in the module's own dictionary.
    """
    own = _dictionary(module)
    path = own.get("__path__")
    if not isinstance(path, (list, tuple)) and type(path).__module__ not in PATH_CLASSES:
        path = ()
    try:
        places = [own.get("__file__"), *path]  # type: ignore[misc]  # a namespace's path is a class without types
    except Exception:
        # A namespace whose parent is gone.
        places = [own.get("__file__")]
    return [place for place in places if isinstance(place, str)]


def _dictionary(module: object) -> Mapping[str, object]:
    try:
        own = object.__getattribute__(module, "__dict__")
    except Exception:
        return {}
    return own if type(own) is dict else {}


def _note_replaced(folder: Path, before: Mapping[str, object]) -> None:
    """Note what ``folder``'s files put into ``sys.modules`` in their own place since ``before``."""
    names = _names(folder)
    for name, module in list(sys.modules.items()):
        is_new = module is not None and before.get(name) is not module
        if is_new and name.partition(".")[0] in names and not _places(module):
            _replaced[name] = (module, folder)
