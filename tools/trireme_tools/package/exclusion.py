"""Names or paths to leave out of an archive, as glob patterns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from sm.errors import CommandError
from sm.multimodel.staging import CONFIG
from sm.repository import models
from sm.repository.ensembles import steps
from trireme_tools.package.contents import is_cache


class Exclusion:
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
