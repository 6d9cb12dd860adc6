"""Fill a folder that Triton reads in place of a model's own, with links to the model's files.

Triton 2.71 refuses a model whose label file is a link that leads out of the model's folder. So the files that
the configuration names lie in the folder itself. All others are links: weights may be large, and a
``model.py`` finds what lies beside its own file.
"""

from __future__ import annotations

import os
import shutil
from codecs import BOM_UTF8
from collections.abc import Callable, Collection
from pathlib import Path

#: Texts that Triton reads itself: configurations and labels.
TEXTS = (".pbtxt", ".txt")
#: Bytes. A larger file is a link where it cannot be a hard link: it is an archive with an environment, which
#: Triton reads through a link too.
MAX_COPIED_BYTES = 256 * 2**20


def link_model(
    model: Path,
    folder: Path,
    *,
    is_opened: Callable[[str], bool] = str.isdecimal,
    named_files: Collection[Path] = (),
    left_out: Collection[str] = (),
) -> None:
    """Fill ``folder``, which may exist, with what is in the folder ``model``.

    Args:
        model: The model's folder.
        folder: What Triton reads.
        is_opened: True for the name of a subfolder, such as a version's, that becomes a folder of links. The
            box can set its time, so that Triton loads the model again. Other subfolders are links.
        named_files: The files that must lie in the folder itself, by their paths in it. The folders that lead
            to them are opened.
        left_out: Names that an opened folder does not get.
    """
    opened = {parent for file in named_files for parent in file.parents}

    def fill(inside: Path) -> None:
        (folder / inside).mkdir(exist_ok=True)
        is_top = inside == Path()
        for entry in (model / inside).iterdir():
            path = inside / entry.name
            if entry.is_dir() and (path in opened or (is_top and is_opened(entry.name))):
                fill(path)
            elif path in named_files:
                put_inside(entry, folder / path)
            elif is_top or entry.name not in left_out:
                link(entry, folder / path)

    fill(Path())


def link(path: Path, place: Path) -> None:
    """Create a link to ``path``, in the place of what is there."""
    _clear(place)
    if not _copied_without_mark(path, place):
        place.symlink_to(path)


def put_inside(file: Path, place: Path) -> None:
    """Create a second name of a file, or a copy where the file system has no hard links to it."""
    _clear(place)
    if _copied_without_mark(file, place):
        return
    source = file.resolve()
    try:
        os.link(source, place)
    except OSError:  # another file system, or its permissions
        if source.stat().st_size > MAX_COPIED_BYTES:
            place.symlink_to(file)
            return
        shutil.copy2(source, place)


def _clear(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)


def _copied_without_mark(path: Path, place: Path) -> bool:
    """Copy a text that has a byte order mark, without it. False for any other file."""
    if path.suffix not in TEXTS or not path.is_file():
        return False
    with path.open("rb") as file:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            return False
        place.write_bytes(file.read())
    return True
