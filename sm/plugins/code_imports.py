"""Imports of the code in a code folder: its own modules, and its requirements.

Its modules are imported under their plain names: ``import helpers``. Pickles refer to their classes by these
names. ``sys.modules`` has only one module of a name. So modules of other folders
are removed from it before a folder is loaded; code that imported them keeps them.

``code/requirements.txt`` is installed if a setting says so; otherwise what is missing is logged. Packages go
into a folder of the cache that is named after the requirements, and come after the box's own packages on
``sys.path``: the box's versions win.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import ModuleType

from sm.errors import StartError
from sm.invocation import LOOK_S, current, wait
from sm.plugins.stuck_code import MakingLimit
from sm.repository.models import REQUIREMENTS_FILE, WHEELS_FOLDER
from sm.settings import HERE

log = logging.getLogger(__name__)


#: The folders from which scripts were loaded in this process.
_imported_folders: set[Path] = set()


class Turn:
    """The one who imports. Another takes its place if it never ends."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        #: The folders from which the thread that holds the lock is loading.
        self.folders: list[Path] = []


_turn = Turn()
#: The time in which a client must be made; None in tools, and while a worker starts: that has its own limit.
making_limit: MakingLimit | None = None


def watched(path: Path, give_up: Callable[[], object] = lambda: None) -> AbstractContextManager[None]:
    """Watch that the code of a file or folder, which runs in the block, returns in time."""
    return nullcontext() if making_limit is None else making_limit.watch(path, give_up)


def loading() -> AbstractContextManager[None]:
    """Say that the block loads a model, which may take long."""
    return nullcontext() if making_limit is None else making_limit.loading()


@contextmanager
def _importing() -> Iterator[Turn]:
    """Be the only one who imports. A request waits for it until its deadline."""

    def acquire(seconds: float) -> Turn | None:
        turn = _turn
        if turn.lock.acquire(True, min(seconds, LOOK_S)):
            if turn is _turn:
                return turn
            turn.lock.release()
        return None

    turn = wait(acquire, current())
    try:
        yield turn
    finally:
        turn.lock.release()


def _take_turn_from(stuck: Turn) -> None:
    """Let others import although one never ends."""
    global _turn
    if _turn is stuck:
        _turn = Turn()


@contextmanager
def plain_names(folder: Path, anew: bool = True) -> Iterator[None]:
    """Import from ``folder`` first; one folder at a time.

    Args:
        anew: Load all its modules again. False for code that is imported already: it goes on with its own.
    """
    with _importing() as turn:
        if folder in turn.folders:
            yield
            return
        _imported_folders.add(folder)
        names = {path.stem for root in _import_roots(folder) for path in root.glob("*")}

        def is_removed(name: str, home: Path) -> bool:
            """True for the folder's own modules, others of the same names, and those whose files are gone."""
            is_in_the_way = anew if home == folder else name.partition(".")[0] in names
            return is_in_the_way or not home.is_dir()

        _remove(is_removed)
        paths = [str(root) for root in _import_roots(folder) if root.is_dir()]
        removed = {imported for imported in _imported_folders if not imported.is_dir()}
        old_paths = {str(root) for imported in removed for root in _import_roots(imported)}
        sys.path[:] = [*paths, *(entry for entry in sys.path if entry not in {*paths, *old_paths})]
        _imported_folders.difference_update(removed)
        importlib.invalidate_caches()
        turn.folders.append(folder)
        try:
            with watched(folder, partial(_take_turn_from, turn)):
                yield
        finally:
            turn.folders.pop()


def forget_modules(folder: Path) -> None:
    """Forget all modules of ``folder``."""
    with _importing():
        _remove(lambda _, home: home == folder)
        _imported_folders.discard(folder)
        roots = set(map(str, _import_roots(folder)))
        sys.path[:] = [entry for entry in sys.path if entry not in roots]
        for root in _import_roots(folder):
            sys.path_importer_cache.pop(str(root), None)


def _import_roots(folder: Path) -> tuple[Path, Path]:
    """Return the folders of a code folder from which modules are imported."""
    return folder, folder / "lib"


def _remove(is_removed: Callable[[str, Path], bool]) -> None:
    """Forget the modules from code folders for whose name and folder ``is_removed`` returns True."""
    # All folders are determined before any module is removed: a namespace package's needs its parent.
    # Others may import meanwhile: only the copy of a dictionary runs no code of theirs.
    homes = {name: _home(module) for name, module in sys.modules.copy().items()}
    for name, home in homes.items():
        if home is not None and is_removed(name, home):
            sys.modules.pop(name, None)


def _home(module: object) -> Path | None:
    """Return the code folder that a module came from, as its import set its file and folders.

    ``sys.modules`` may hold anything, also what raises: only the dictionary of a module is read.
    """
    attributes = vars(module) if issubclass(type(module), ModuleType) else {}
    paths = [attributes.get("__file__")]
    with suppress(Exception):  # a namespace package whose parent is gone
        paths += attributes.get("__path__", ())
    # Compared as texts: a process has thousands of modules. Code folders may be nested: take the innermost.
    homes = [
        folder
        for folder in _imported_folders
        if any(isinstance(path, str) and path.startswith(f"{folder}{os.sep}") for path in paths)
    ]
    return max(homes, key=lambda folder: len(folder.parts), default=None)


#: The image's pip. Its environment has none, so that no client imports it.
PIP_FILE = HERE / "pip.pyz"


def install_or_check(code: Path, cache: Path, spare: Path, install: bool) -> None:
    """Make the packages of ``code/requirements.txt`` importable, in this process and its children.

    Without ``install``, missing packages are logged. With it they are installed below ``cache``, or below
    ``spare`` if ``cache`` is read-only.

    Raises:
        StartError: A package cannot be installed.
    """
    file = code / REQUIREMENTS_FILE
    if not file.is_file():
        return
    if install:
        site.addsitedir(str(ensure_installed(file, cache, spare)))
        return
    missing_packages = sorted(find_missing(file.read_text("utf-8-sig", "replace")))
    if missing_packages:
        log.warning(
            "%s requires %s, which is not installed: TRIREME_INSTALL_REQUIREMENTS=true installs it",
            file,
            ", ".join(missing_packages),
        )


def find_missing(text: str) -> Iterator[str]:
    """Yield the packages of a requirements file that are not installed in any version."""
    for line in text.splitlines():
        name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line.strip())
        if name:
            try:
                importlib.metadata.distribution(name[0])
            except importlib.metadata.PackageNotFoundError:
                yield name[0]


def ensure_installed(file: Path, cache: Path, spare: Path) -> Path:
    """Return the folder with the packages of ``file``, after installing them if needed."""
    name = f"requirements/{requirements_digest(file)}"
    folder = cache / name
    if folder.is_dir():
        return folder
    if not _writable(folder.parent):
        folder = spare / folder.name
        folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        _install(folder, file)
    return folder


def requirements_digest(file: Path) -> str:
    """Return a name for the requirements: a digest of the text, the wheels beside it, and this Python."""
    wheels = [
        f"{path.name} {path.stat().st_size}" for path in sorted((file.parent / WHEELS_FOLDER).glob("*"))
    ]
    inputs = "\n".join([file.read_text(errors="replace"), *wheels, sys.version, os.uname().machine])
    return hashlib.sha256(inputs.encode()).hexdigest()[:32]


def _install(folder: Path, file: Path) -> None:
    """Install into a temporary folder, which is then renamed: two processes may install at once."""
    log.info("installing %s", file)
    staged = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        _run_pip(staged, file)
        staged.chmod(0o755)
        staged.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise StartError(f"{file}: it cannot be installed into {folder}: {error.strerror}.") from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def find_pip() -> tuple[str, ...]:
    """Return the command line of pip: this environment's, or the image's, which is one file beside it."""
    if importlib.util.find_spec("pip"):
        return (sys.executable, "-m", "pip")
    if PIP_FILE.is_file():
        return (sys.executable, str(PIP_FILE))
    raise StartError(
        f"there is no pip to install code/requirements.txt with: neither in {sys.prefix} nor as {PIP_FILE}. "
        "python -m ensurepip adds one."
    )


def _run_pip(target: Path, file: Path) -> None:
    wheels = file.parent / WHEELS_FOLDER
    sources = ("--no-index", "--find-links", str(wheels)) if wheels.is_dir() else ()
    process = subprocess.run(
        (
            *(*find_pip(), "install", "--quiet", "--no-input", "--disable-pip-version-check"),
            *("--target", str(target), "--requirement", str(file), *sources),
        ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        # Relative paths in a requirement start at its file.
        cwd=file.parent,
    )
    if process.returncode:
        lines = [line.strip() for line in process.stderr.splitlines() if line.strip()] or ["no reason given"]
        reason = next((line for line in lines if line.startswith("ERROR: ")), lines[-1])
        raise StartError(f"{file}: pip cannot install it: {reason.removeprefix('ERROR: ').rstrip('.')}.")


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
