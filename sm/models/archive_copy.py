"""Copy an archive, so that nobody changes the files that the box reads."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from sm.errors import BadInput
from sm.repository import models

#: Bytes copied of one archive. Beyond this, small files are linked too, except those that the box itself
#: reads.
MAX_COPIED_BYTES = 256 * 2**20
READ_BY_THE_BOX = ("config.pbtxt", ".py")
#: Limits of an archive: files and folders, and the depth of folders.
MAX_ENTRIES, MAX_DEPTH = 100_000, 32
#: Errors of an entry that may not be read, or that is removed or replaced meanwhile.
READ_ERRORS = frozenset(
    (*(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM), errno.ELOOP, errno.ESTALE)
)
#: Bytes of a path in the copy. The kernel allows 4096, and Triton's folder is a little deeper.
MAX_PATH_BYTES = 3500
#: Bytes. Larger files are linked, and the box itself reads none of them: copies of weights would double a
#: model's disk space.
MAX_COPIED_FILE_BYTES = 2**20


def copy_archive(
    archive: Path, target: Path, max_copied: int = MAX_COPIED_BYTES, max_entries: int = MAX_ENTRIES
) -> None:
    """Make the folder ``target`` a copy of the folder ``archive``, before anything in it is read.

    So the box inspects, and Triton loads, files that are not changed by whoever put the archive there. The
    copy holds only regular files from below the archive: no pipe or device that would block a reader, no link
    that leads to a file of the host. Small files are copied. Large ones are hard links, or symbolic links
    where there can be no hard links.

    An archive that changes in this moment is not guarded against: who can change it can put a ``model.py``
    into it, which runs as the same user.

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
    _Copy(archive, max_copied, max_entries, max_entries).copy_folder(archive, target, 0)


def lost_file(error: OSError, name: str) -> Exception:
    """Return the error for a file of an archive that cannot be read; the error itself if it is the box's."""
    if error.errno not in READ_ERRORS:
        return error
    return BadInput(f"{name} cannot be read: {error.strerror}; load the archive again when it is complete")


@dataclass
class _Copy:
    """Copies one archive, and counts what it has copied."""

    archive: Path
    bytes_left: int
    entries_left: int
    max_entries: int

    def copy_folder(self, folder: Path, target: Path, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise BadInput(f"{self._name_of(folder)}: folders are nested more than {MAX_DEPTH} deep")
        if len(os.fsencode(target)) > MAX_PATH_BYTES:
            raise BadInput(f"{self._name_of(folder)}: the path is too long")
        target.mkdir(mode=0o700)
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            raise lost_file(error, self._name_of(folder)) from None
        for path in entries:
            if path.name in models.LEFT_BY_OTHERS:
                continue
            self.entries_left -= 1
            if self.entries_left < 0:
                raise BadInput(f"the archive has more than {self.max_entries} files and folders")
            try:
                self._copy_entry(path, target / path.name, depth)
            except OSError as error:
                raise lost_file(error, self._name_of(path)) from None

    def _copy_entry(self, path: Path, target: Path, depth: int) -> None:
        source = self._resolve(path)
        if source.is_dir():
            if source in path.parents:
                raise BadInput(f"{self._name_of(path)} is a link to a folder that contains it")
            self.copy_folder(source, target, depth + 1)
        elif source.is_file():
            self._copy_file(source, target)
        else:
            raise BadInput(f"{self._name_of(path)} is not a file or folder")

    def _copy_file(self, source: Path, target: Path) -> None:
        size = source.stat().st_size
        has_room = size <= self.bytes_left or source.name.endswith(READ_BY_THE_BOX)
        if size <= MAX_COPIED_FILE_BYTES and has_room:
            self.bytes_left -= size
            shutil.copy2(source, target)
            target.chmod(target.stat().st_mode & 0o700 | 0o600)
            return
        try:
            os.link(source, target)
        except OSError:  # another file system, or its permissions
            target.symlink_to(source)

    def _resolve(self, path: Path) -> Path:
        """Return the file or folder that an entry is, or that it links to within the archive."""
        try:
            path.name.encode()
            source = path.resolve(strict=True)
        except UnicodeEncodeError:
            raise BadInput(f"{self._name_of(path)}: the name is not UTF-8") from None
        except (OSError, RuntimeError):
            raise BadInput(f"{self._name_of(path)} is a link that leads nowhere") from None
        if self.archive != source and self.archive not in source.parents:
            raise BadInput(f"{self._name_of(path)} is a link that leads out of the archive")
        return source

    def _name_of(self, path: Path) -> str:
        """Format an entry for a message: its path in the archive, shortened."""
        if path == self.archive:
            return "the archive"
        name = str(path.relative_to(self.archive)).encode(errors="backslashreplace").decode()
        return repr(f"…{name[-200:]}" if len(name) > 200 else name)
