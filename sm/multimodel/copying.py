"""Copy a model archive into a folder of the box before anything in it is read.

Other processes may write to an archive's folder. So the box inspects, and Triton loads, a copy that nobody
changes. The copy holds only regular files from below the archive: no pipe or device that would block a
reader, no link that leads to a file of the host.

Each folder is opened by its descriptor and each name without following links. So nobody can divert the copy
by replacing a folder with a link while it is read. Links within the archive are resolved here, step by step.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
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
#: Links that one link may lead through; the kernel has the same limit.
MAX_LINKS = 40
#: Bytes of a path in the copy. The kernel allows 4096, and Triton's folder is a little deeper.
MAX_PATH_BYTES = 3500

#: O_PATH needs no permission to read the folders on the way.
FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LISTING_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: Without O_NONBLOCK, opening a named pipe waits for a writer.
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

#: The kernel's errors for an entry that was replaced a moment ago.
CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE, errno.ENXIO)
#: The kernel's errors if a hard link is impossible, between file systems or by their permissions.
NO_HARD_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP)
UNREADABLE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EIO)

FILE_TYPE_NAMES = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

#: Names of folders and of a last entry, from the archive's folder down. None of them is a link.
Parts = tuple[str, ...]


def copy_archive(archive: Path, target: Path, limits: Limits | None = None) -> None:
    """Make the folder ``target`` a copy of the folder ``archive``.

    Small files are copied. Large ones are hard links, or symbolic links where there can be no hard links.

    Args:
        archive: An absolute path without symbolic links.
        target: A folder that does not exist yet, below one that does.
        limits: How much is copied, for tests.

    Raises:
        BadInput: The archive has an entry that is not a file or folder, a link that leads out of it, or too
            many entries; or it has changed meanwhile. The sentence names the entry.
        OSError: There is no room for the copy.
    """
    with _errors_for_caller(()):
        root = os.open("/", FOLDER_FLAGS)
        for name in archive.parts[1:]:
            root = _enter(root, name)
    try:
        _Copier(root, archive, limits or Limits()).copy_folder((), target, 0)
    finally:
        os.close(root)


class Limits:
    """How much of one archive may still be copied."""

    def __init__(self, copied_bytes: int = MAX_COPIED_BYTES, entries: int = MAX_ENTRIES) -> None:
        self._bytes, self._entries = copied_bytes, entries
        self._max_entries = entries

    def count_entry(self) -> None:
        self._entries -= 1
        if self._entries < 0:
            raise BadInput(f"the archive has more than {self._max_entries} files and folders")

    def reserve_bytes(self, name: str, size: int) -> bool:
        """Count a file of ``size`` bytes if it is to be copied. Returns False if it is to be linked."""
        if size > MAX_COPIED_FILE_BYTES or (size > self._bytes and not name.endswith(READ_BY_THE_BOX)):
            return False
        self._bytes -= size
        return True


class _Copier:
    """Copies one archive. ``root`` is the descriptor of its folder, ``path`` its path."""

    def __init__(self, root: int, path: Path, limits: Limits) -> None:
        self._root, self._path, self._limits = root, path, limits

    def copy_folder(self, parts: Parts, target: Path, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise BadInput(f"{_format_entry(parts)}: folders are nested more than {MAX_DEPTH} deep")
        if len(os.fsencode(target)) > MAX_PATH_BYTES:
            raise BadInput(f"{_format_entry(parts)}: the path is too long")
        target.mkdir(mode=0o700)
        with self._opened_folder(parts) as folder:
            status = os.fstat(folder)
            for name in self._list_folder(parts, folder):
                self._copy_entry((*parts, name), target / name, depth)
            if os.fstat(folder).st_mtime_ns != status.st_mtime_ns:
                raise _changed(parts)

    def _list_folder(self, parts: Parts, folder: int) -> list[str]:
        names = []
        with _errors_for_caller(parts):
            listing = os.open(".", LISTING_FLAGS, dir_fd=folder)
        try:
            with _errors_for_caller(parts), os.scandir(listing) as entries:
                for entry in entries:
                    self._limits.count_entry()
                    _check_name((*parts, entry.name))
                    names.append(entry.name)
        finally:
            os.close(listing)
        return sorted(names)

    def _copy_entry(self, parts: Parts, target: Path, depth: int) -> None:
        parts, file_type = self._resolve(parts)
        if stat.S_ISDIR(file_type):
            self.copy_folder(parts, target, depth + 1)
        else:
            self._copy_file(parts, target)

    def _copy_file(self, parts: Parts, target: Path) -> None:
        with self._opened_folder(parts[:-1]) as folder:
            with _errors_for_caller(parts):
                file = os.open(parts[-1], FILE_FLAGS, dir_fd=folder)
            try:
                status = os.fstat(file)
                _check_regular(parts, status.st_mode)
                if self._limits.reserve_bytes(parts[-1], status.st_size):
                    self._copy_bytes(parts, file, status, target)
                else:
                    self._link(parts, folder, status, target)
            finally:
                os.close(file)

    def _copy_bytes(self, parts: Parts, file: int, status: os.stat_result, target: Path) -> None:
        with open(file, "rb", buffering=0, closefd=False) as source:
            content = b""
            while len(content) <= status.st_size and (
                chunk := source.read(status.st_size + 1 - len(content))
            ):
                content += chunk
        if len(content) != status.st_size or os.fstat(file).st_mtime_ns != status.st_mtime_ns:
            raise _changed(parts)
        target.write_bytes(content)
        target.chmod(stat.S_IMODE(status.st_mode) & 0o700 | 0o600)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _link(self, parts: Parts, folder: int, status: os.stat_result, target: Path) -> None:
        try:
            os.link(parts[-1], target, src_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno in NO_HARD_LINK:
                target.symlink_to(self._path.joinpath(*parts))
                return
            if error.errno in CHANGED:
                raise _changed(parts) from None
            raise
        if not os.path.samestat(target.lstat(), status):
            raise _changed(parts)

    def _resolve(self, parts: Parts) -> tuple[Parts, int]:
        """Resolve an entry within the archive; return its path without links, and its mode."""
        entry, resolved, remaining, links = parts, parts[:-1], [parts[-1]], 0
        mode = 0
        while remaining:
            name = remaining.pop(0)
            if name in ("", ".", ".."):
                if name == ".." and not resolved:
                    raise BadInput(f"{_format_entry(entry)} is a link that leads out of the archive")
                resolved, mode = resolved[:-1] if name == ".." else resolved, stat.S_IFDIR
                continue
            with self._opened_folder(resolved) as folder, _errors_for_caller(entry):
                mode = self._mode(entry, folder, name, bool(links))
                if stat.S_ISLNK(mode):
                    links += 1
                    remaining = [*self._link_target(entry, folder, name, links), *remaining]
                    continue
            if remaining and not stat.S_ISDIR(mode):
                raise _dangling(entry)
            resolved = (*resolved, name)
        if not stat.S_ISDIR(mode):
            _check_regular(entry, mode)
        elif resolved == entry[: len(resolved)] and resolved != entry:
            raise BadInput(f"{_format_entry(entry)} is a link to a folder that contains it")
        return resolved, mode

    def _mode(self, entry: Parts, folder: int, name: str, by_link: bool) -> int:
        try:
            return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            raise (_dangling(entry) if by_link else _changed(entry)) from None

    def _link_target(self, entry: Parts, folder: int, name: str, links: int) -> list[str]:
        target = os.readlink(name, dir_fd=folder)
        if target.startswith("/"):
            raise BadInput(f"{_format_entry(entry)} is a link that leads out of the archive")
        if links > MAX_LINKS:
            raise BadInput(
                f"{_format_entry(entry)} is a link that leads through more than {MAX_LINKS} others"
            )
        return target.split("/")

    @contextlib.contextmanager
    def _opened_folder(self, parts: Parts) -> Iterator[int]:
        with _errors_for_caller(parts):
            folder = os.dup(self._root)
            for name in parts:
                folder = _enter(folder, name)
        try:
            yield folder
        finally:
            os.close(folder)


def _enter(folder: int, name: str) -> int:
    """Open a folder in ``folder``, whose descriptor is closed."""
    try:
        return os.open(name, FOLDER_FLAGS, dir_fd=folder)
    finally:
        os.close(folder)


def _check_regular(parts: Parts, mode: int) -> None:
    if not stat.S_ISREG(mode):
        file_type = FILE_TYPE_NAMES.get(stat.S_IFMT(mode), "no file")
        raise BadInput(
            f"{_format_entry(parts)} is {file_type}: an archive holds regular files and folders only"
        )


def _check_name(parts: Parts) -> None:
    try:
        parts[-1].encode()
    except UnicodeEncodeError:
        raise BadInput(f"{_format_entry(parts)}: the name is not UTF-8") from None


def _dangling(parts: Parts) -> BadInput:
    return BadInput(f"{_format_entry(parts)} is a link that leads nowhere")


def _changed(parts: Parts) -> BadInput:
    return BadInput(
        f"{_format_entry(parts)} has changed while the archive was read: load it when it is complete"
    )


def _format_entry(parts: Parts) -> str:
    """Format an entry for a message: its path in the archive, shortened."""
    path = "/".join(parts).encode(errors="backslashreplace").decode()
    return repr(f"…{path[-200:]}" if len(path) > 200 else path or ".")


@contextlib.contextmanager
def _errors_for_caller(parts: Parts) -> Iterator[None]:
    """Translate the kernel's error for an entry into the caller's error."""
    try:
        yield
    except OSError as error:
        if error.errno in CHANGED:
            raise _changed(parts) from None
        if error.errno in UNREADABLE:
            raise BadInput(f"{_format_entry(parts)} cannot be read: {error.strerror}") from None
        raise
