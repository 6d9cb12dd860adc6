"""The files of a folder for an archive, with links replaced by their targets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sm.errors import CommandError

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
class Entry:
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

    def of(self, path: Path, name: str) -> list[Entry]:
        """Return ``path`` and all below it, in a fixed order.

        :class:`CommandError` lists links without target, out of ``home``, or to a folder that contains them.
        """
        faults: list[str] = []
        entries = list(self._walk(path, name, (), faults))
        if faults:
            raise CommandError("\n".join(faults))
        return entries

    def _walk(self, path: Path, name: str, above: tuple[Path, ...], faults: list[str]) -> Iterator[Entry]:
        real = Path(os.path.realpath(path))
        fault = self._fault(path, real, above)
        if fault:
            faults.append(fault)
            return
        yield Entry(name, path)
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
