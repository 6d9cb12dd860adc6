"""Copy a model archive into a folder of the box before anything in it is read.

So the box inspects, and Triton loads, files that are not changed by whoever put the archive there. The copy
holds only regular files from below the archive: no pipe or device that would block a reader, no link that
leads to a file of the host.

An archive that changes in this moment is not guarded against: who can change it can put a ``model.py`` into
it, which runs as the same user.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sm.errors import BadInput

#: Bytes. Larger files are linked: copies of weights would double a model's disk space.
MAX_COPIED_FILE_BYTES = 2**20
#: Bytes copied of one archive. Beyond this, small files are linked too, except those that the box itself
#: reads.
MAX_COPIED_BYTES = 256 * 2**20
READ_BY_THE_BOX = ("config.pbtxt", ".py")
#: Limits of an archive: files and folders, and the depth of folders.
MAX_ENTRIES, MAX_DEPTH = 100_000, 32
#: Errors of an entry that may not be read, or that is removed or replaced meanwhile.
READ_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
#: Bytes of a path in the copy. The kernel allows 4096, and Triton's folder is a little deeper.
MAX_PATH_BYTES = 3500


def copy_archive(
    archive: Path, target: Path, max_copied: int = MAX_COPIED_BYTES, max_entries: int = MAX_ENTRIES
) -> None:
    """Make the folder ``target`` a copy of the folder ``archive``.

    Small files are copied. Large ones are hard links, or symbolic links where there can be no hard links.

    Args:
        archive: An absolute path without symbolic links.
        target: A folder that does not exist yet, below one that does.
        max_copied: Bytes of all copied files.
        max_entries: Files and folders.

    Raises:
        BadInput: The archive has an entry that is not a file or folder, a link that leads out of it, or too
            many entries; or it cannot be read. The sentence names the entry.
        OSError: There is no room for the copy.
    """
    copied = entries = 0

    def copy_folder(folder: Path, target: Path, depth: int) -> None:
        nonlocal entries
        if depth > MAX_DEPTH:
            raise BadInput(f"{name_of(folder)}: folders are nested more than {MAX_DEPTH} deep")
        if len(os.fsencode(target)) > MAX_PATH_BYTES:
            raise BadInput(f"{name_of(folder)}: the path is too long")
        target.mkdir(mode=0o700)
        for path in sorted(folder.iterdir()):
            entries += 1
            if entries > max_entries:
                raise BadInput(f"the archive has more than {max_entries} files and folders")
            try:
                copy_entry(path, target / path.name, depth)
            except READ_ERRORS as error:
                raise BadInput(f"{name_of(path)} cannot be read: {error.strerror}") from None

    def copy_entry(path: Path, target: Path, depth: int) -> None:
        nonlocal copied
        source = resolve(path)
        if source.is_dir():
            if source in path.parents:
                raise BadInput(f"{name_of(path)} is a link to a folder that contains it")
            copy_folder(source, target, depth + 1)
            return
        if not source.is_file():
            raise BadInput(f"{name_of(path)} is not a file or folder")
        size = source.stat().st_size
        if size > MAX_COPIED_FILE_BYTES or (
            copied + size > max_copied and not source.name.endswith(READ_BY_THE_BOX)
        ):
            try:
                os.link(source, target)
            except OSError:  # another file system, or its permissions
                target.symlink_to(source)
            return
        copied += size
        shutil.copy2(source, target)
        target.chmod(target.stat().st_mode & 0o700 | 0o600)

    def resolve(path: Path) -> Path:
        try:
            path.name.encode()
            source = path.resolve(strict=True)
        except UnicodeEncodeError:
            raise BadInput(f"{name_of(path)}: the name is not UTF-8") from None
        except (OSError, RuntimeError):
            raise BadInput(f"{name_of(path)} is a link that leads nowhere") from None
        if archive != source and archive not in source.parents:
            raise BadInput(f"{name_of(path)} is a link that leads out of the archive")
        return source

    def name_of(path: Path) -> str:
        """Format an entry for a message: its path in the archive, shortened."""
        name = str(path.relative_to(archive)).encode(errors="backslashreplace").decode()
        return repr(f"…{name[-200:]}" if len(name) > 200 else name)

    copy_folder(archive, target, 0)
