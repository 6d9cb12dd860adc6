"""Import the modules of a code folder under their plain names: ``import helpers``.

The toolkit does so, and pickles refer to their classes by these names. ``sys.modules`` has only one module of
a name. So modules of other folders are removed from it before a folder is loaded; code that imported them
keeps them.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

#: Used in place of the toolkit if that is not installed.
STAND_IN = str(Path(__file__).parent / "stand_in")
#: Modules of Python that define the path class of namespace packages. Other path objects are not iterated.
PATH_CLASSES = ("_frozen_importlib_external", "importlib._bootstrap_external")
#: The folders from which scripts were loaded in this process.
_imported_folders: set[Path] = set()
#: Objects that a file put into ``sys.modules`` in its own place, with the file's folder: the object itself
#: does not tell where it came from.
_replaced: dict[str, tuple[object, Path]] = {}
_lock = threading.RLock()
#: The folders from which the thread that holds the lock is loading.
_loading_folders: list[Path] = []


@contextmanager
def plain_names(folder: Path) -> Iterator[None]:
    """Import from ``folder`` first, and load all its modules again; one folder at a time."""
    with _lock:
        if folder in _loading_folders:
            yield
            return
        _imported_folders.add(folder)
        _remove_conflicting_modules(folder)
        paths = [str(root) for root in _import_roots(folder) if root.is_dir()]
        removed = {imported for imported in _imported_folders if not imported.is_dir()}
        old_paths = {str(root) for imported in removed for root in _import_roots(imported)}
        others = [entry for entry in sys.path if entry not in {*paths, *old_paths, STAND_IN}]
        sys.path[:] = [*paths, *others, STAND_IN]
        _imported_folders.difference_update(removed)
        importlib.invalidate_caches()
        _loading_folders.append(folder)
        before = dict(sys.modules)
        try:
            yield
        finally:
            _loading_folders.pop()
            _record_replaced(folder, before)


def forget_modules(folder: Path) -> None:
    """Forget all modules of ``folder``."""
    with _lock:
        _remove([name for name, home in _homes().items() if home == folder])
        _imported_folders.discard(folder)
        roots = set(map(str, _import_roots(folder)))
        sys.path[:] = [entry for entry in sys.path if entry not in roots]
        for root in _import_roots(folder):
            sys.path_importer_cache.pop(str(root), None)


def _remove_conflicting_modules(folder: Path) -> None:
    """Forget modules of ``folder``, other modules of the same names, and modules whose files are gone."""
    names = _importable_names(folder)
    _remove(
        [
            name
            for name, home in _homes().items()
            if home == folder or name.partition(".")[0] in names or not home.is_dir()
        ]
    )


def _importable_names(folder: Path) -> set[str]:
    """Return the names that can be imported from ``folder``."""
    return {path.stem for root in _import_roots(folder) for path in root.glob("*")}


def _import_roots(folder: Path) -> tuple[Path, Path]:
    """Return the folders of a code folder from which modules are imported."""
    return folder, folder / "lib"


def _remove(names: list[str]) -> None:
    for name in names:
        sys.modules.pop(name, None)
        _replaced.pop(name, None)


def _homes() -> dict[str, Path]:
    """Return the code folder of each module that came from one.

    All are determined before any is removed: the path of a namespace package needs its parent.
    """
    homes = {name: _home(name, module) for name, module in list(sys.modules.items())}
    return {name: home for name, home in homes.items() if home}


def _home(name: str, module: object) -> Path | None:
    """Return the code folder that a module came from."""
    replaced = _replaced.get(name)
    if replaced and replaced[0] is module:
        return replaced[1]
    # Code folders may be nested: take the innermost.
    parents = (parent for path in _module_paths(module) for parent in Path(path).parents)
    return next((parent for parent in parents if parent in _imported_folders), None)


def _module_paths(module: object) -> list[str]:
    """Return the file and the folders of a module, as its import set them.

    ``sys.modules`` may hold anything: None, or an object whose attributes raise or never return. So only the
    module's own dictionary is read.
    """
    attributes = _dictionary(module)
    path = attributes.get("__path__")
    if not isinstance(path, (list, tuple)) and type(path).__module__ not in PATH_CLASSES:
        path = ()
    try:
        paths = [attributes.get("__file__"), *path]  # type: ignore[misc]  # a namespace's path is a class without types
    except Exception:
        # A namespace package whose parent is gone.
        paths = [attributes.get("__file__")]
    return [path for path in paths if isinstance(path, str)]


def _dictionary(module: object) -> Mapping[str, object]:
    try:
        attributes = object.__getattribute__(module, "__dict__")
    except Exception:
        return {}
    return attributes if type(attributes) is dict else {}


def _record_replaced(folder: Path, before: Mapping[str, object]) -> None:
    """Record objects that ``folder``'s files put into ``sys.modules`` in their own place since ``before``."""
    names = _importable_names(folder)
    for name, module in list(sys.modules.items()):
        is_new = module is not None and before.get(name) is not module
        if is_new and name.partition(".")[0] in names and not _module_paths(module):
            _replaced[name] = (module, folder)
