"""The files of a folder for an archive: links replaced by their targets, without those to leave out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from sm.errors import CommandError
from sm.models.staging import CONFIG
from sm.repository import models
from sm.repository.ensembles import steps

#: Folders that are generated again and of no use elsewhere.
CACHES = {
    "__pycache__",
    ".cache",
    ".DS_Store",
    ".git",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
}


@dataclass(frozen=True)
class ArchiveEntry:
    """A file or folder with its ``name`` in the archive; ``data`` replaces the file's content."""

    name: str
    source: Path
    data: bytes | None = None

    @property
    def is_folder(self) -> bool:
        return self.data is None and self.source.is_dir()

    @property
    def size(self) -> int:
        """In bytes, before compression."""
        if self.data is not None:
            return len(self.data)
        return 0 if self.is_folder else self.source.stat().st_size

    @property
    def executable(self) -> bool:
        return os.access(self.source, os.X_OK)


class Contents:
    """Walks below ``home``. Nothing outside of it gets into an archive, nor anything that ``excludes``
    matches.
    """

    def __init__(self, home: Path, excludes: Callable[[Path], bool] = lambda _path: False) -> None:
        self._home = Path(os.path.realpath(home))
        self._excludes = excludes

    def of(self, path: Path, name: str) -> list[ArchiveEntry]:
        """Return ``path`` and all below it, in a fixed order.

        :class:`CommandError` lists links without target, out of ``home``, or to a folder that contains them.
        """
        faults: list[str] = []
        entries = list(self._walk(path, name, (), faults))
        if faults:
            raise CommandError("\n".join(faults))
        return entries

    def _walk(
        self, path: Path, name: str, above: tuple[Path, ...], faults: list[str]
    ) -> Iterator[ArchiveEntry]:
        real = Path(os.path.realpath(path))
        fault = self._fault(path, real, above)
        if fault:
            faults.append(fault)
            return
        yield ArchiveEntry(name, path)
        if real.is_dir():
            for inside in sorted(path.iterdir()):
                if not is_cache(inside) and not self._excludes(inside):
                    yield from self._walk(inside, f"{name}/{inside.name}", (*above, real), faults)

    def _fault(self, path: Path, real: Path, above: tuple[Path, ...]) -> str | None:
        if not real.exists():
            return f"{path} is a link to {path.readlink()}, which is not there."
        if real != self._home and self._home not in real.parents:
            return f"{path} is a link to {real}, outside the repository: put a copy in its place."
        if real in above:
            return f"{path} is a link to a folder that it is in."
        if not real.is_dir() and not real.is_file():
            return f"{path} is neither a file nor a folder."
        return None


def is_cache(path: Path) -> bool:
    return path.name in CACHES or path.suffix == ".pyc"


class ExcludedFiles:
    """``patterns``: with a slash, a path from the top of ``repository``; else the name of a file or
    folder.
    """

    def __init__(self, repository: Path, patterns: Sequence[str] = ()) -> None:
        if any(not pattern.strip("/") for pattern in patterns):
            raise CommandError(
                "--exclude takes a name or a path from the repository's top, such as hf_cache."
            )
        self._home = repository
        self._patterns = {pattern: pattern.removeprefix("./").strip("/") for pattern in patterns}

    def excludes(self, path: Path) -> bool:
        """True if a pattern matches this file or folder; the content of a folder goes with it."""
        return any(self._matches(pattern, path) for pattern in self._patterns.values())

    def excluded_sizes(self) -> dict[Path, int]:
        """Return the excluded files and folders, topmost only, with their sizes in bytes."""
        return {path: sum(_sizes(path)) for path in self._walk(self._home)} if self._patterns else {}

    def unused(self) -> list[str]:
        """Return the patterns that match nothing, as they were given."""
        excluded = list(self.excluded_sizes())
        return [
            option
            for option, pattern in self._patterns.items()
            if not any(self._matches(pattern, path) for path in excluded)
        ]

    def check(self) -> None:
        """Raise :class:`CommandError` if a model that is kept would lose what it needs to start."""
        repository_models = models.read(self._home)
        excluded = {model.name for model in repository_models if self.excludes(model.folder)}
        for model in repository_models:
            if model.name in excluded:
                continue
            files = [model.version(number) / model.file for number in model.served if model.file]
            for path in (model.folder / CONFIG, *files):
                inside = (path, *path.parents[: len(path.relative_to(model.folder).parts) - 1])
                if path.exists() and any(map(self.excludes, inside)):
                    raise CommandError(f"{model.name} would not start: --exclude leaves out {path}.")
            if lost := excluded.intersection(steps(model)):
                raise CommandError(
                    f"{model.name} would not start: --exclude leaves out its step {min(lost)}. "
                    f"Leave {model.name} out, too."
                )

    def _matches(self, pattern: str, path: Path) -> bool:
        if "/" not in pattern:
            return fnmatchcase(path.name, pattern)
        return fnmatchcase(Path(os.path.relpath(path, self._home)).as_posix(), pattern)

    def _walk(self, folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if is_cache(path):
                continue
            if self.excludes(path):
                yield path
            elif path.is_dir() and not path.is_symlink():
                yield from self._walk(path)


def _sizes(path: Path) -> Iterator[int]:
    """Yield the size of every file; links are not followed."""
    if path.is_dir() and not path.is_symlink():
        for inside in path.iterdir():
            yield from _sizes(inside)
    else:
        yield path.lstat().st_size


def unpackable_links(repository: Path) -> Iterator[str]:
    """Yield links to nothing, and links out of the repository, which a copy would lack."""
    home = repository.resolve()
    for folder, folders, files in os.walk(repository):
        for name in sorted((*folders, *files)):
            path = Path(folder, name)
            if not path.is_symlink():
                continue
            target = Path(os.path.realpath(path))  # resolve() fails for a link to itself.
            if not path.exists():
                yield f"{path} is a link to {path.readlink()}, which is not there."
            elif home != target and home not in target.parents:
                yield f"{path} is a link to {target}, outside the repository: put a copy in its place."
