"""Keep the models that were fetched from S3, HTTPS servers, the hub and archives in a cache.

What is in the cache is complete: a file or folder gets its name when all of it is there. Names are digests of
where something is from and which version it is, so a second start fetches only what has changed.

``python -m sm.models.fetch.model_cache SOURCE CACHE`` prints its progress, and last the repository as JSON;
``… --list SOURCE`` the names of the folders below a prefix in S3.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path

from sm import entry_points
from sm.errors import StartError
from sm.models.fetch import addresses
from sm.models.fetch.addresses import shown
from sm.models.fetch.downloads import (
    CHUNK_BYTES,
    PART,
    BrokenConnection,
    DownloadProgress,
    PartialFile,
    Remote,
    Report,
    download,
)
from sm.repository.models import is_own, sha256

#: Seconds after which an interrupted download is removed, and for which a folder stays that no box uses: one
#: may be about to.
PART_LIFE_S, MIN_IDLE_S = 7 * 86_400, 60
#: The folder of what is complete.
FOLDERS = "folders"
#: Files and folders of one archive, as in multi-model mode.
MAX_ENTRIES = 100_000


class ModelCache:
    """Model repositories below ``root``, which several boxes may share."""

    def __init__(self, root: Path, report: Report) -> None:
        self._root, self._report = root, report
        self._objects, self._folders, self._scratch = (
            root / name for name in ("objects", FOLDERS, "scratch")
        )
        #: Files and folders of this fetch.
        self._used: set[Path] = set()
        #: Bytes that came over the network, and that were removed to make room.
        self.fetched_bytes = self.removed_bytes = 0

    def fetch(self, source: str) -> Path:
        """Return the folder with the content of ``source``; commas join several.

        Raises:
            StartError: It cannot be fetched or read. The cache then holds only what a next start can use.
        """
        try:
            with self._locked():
                parts = [part.strip() for part in source.split(",")]
                folders = [self._use(self._fetch_one(part)) for part in parts]
                return folders[0] if len(folders) == 1 else self._use(self._join(parts, folders))
        except OSError as error:
            raise StartError(f"{shown(source)} cannot be fetched: {shown(str(error))}.") from None

    def remove_leftovers(self) -> None:
        """Remove what a killed fetch has left, unless another box fetches now: it has done so."""
        with contextlib.suppress(OSError), self._locked(wait=False):
            pass

    def _use(self, folder: Path) -> Path:
        """Note that a folder is used now."""
        if folder.is_relative_to(self._folders):
            top = self._folders / folder.relative_to(self._folders).parts[0]
            os.utime(top)
            self._used.add(top)
        return folder

    def _fetch_one(self, source: str) -> Path:
        try:
            if source.startswith(addresses.HTTPS):
                return self._fetch_https(source)
            for scheme, list_address in addresses.listers().items():
                if source.startswith(scheme):
                    return self._fetch_listing(source, list_address(source))
        except BrokenConnection as error:
            raise StartError(f"{shown(source)} cannot be fetched: {error}.") from None
        if source.startswith(addresses.HUB):
            raise StartError(f"{shown(source)} needs an extension: {entry_points.INSTALL_EXTENSIONS}.")
        if "://" in source:
            raise StartError(f"{shown(source)} does not start with {', '.join(addresses.REMOTE)}.")
        if source.endswith(addresses.ARCHIVE):
            return self._unpacked(sha256(Path(source)), source, lambda: Path(source))
        return Path(source).absolute()

    def _join(self, parts: list[str], folders: list[Path]) -> Path:
        """Return a folder with links to all that is in the folders of the parts."""
        places: dict[str, Path] = {}
        homes: dict[str, str] = {}
        for part, folder in zip(parts, folders, strict=True):
            for path in sorted(folder.iterdir()):
                if not is_own(path.name):
                    continue
                if path.name in places:
                    both = f"{path.name} of {shown(homes[path.name])} and {path.name} of {shown(part)}"
                    raise StartError(f"{both} are two models of one name.")
                places[path.name], homes[path.name] = path, part
        target = self._folders / addresses.digest(*map(str, places.values()))
        return self._linked(places, target, os.symlink)

    def _linked(self, files: Mapping[str, Path], target: Path, link: Callable[[Path, Path], object]) -> Path:
        """Return a folder with links to files or folders, by their paths in it."""
        if not target.is_dir():
            folder = Path(tempfile.mkdtemp(dir=self._scratch))
            for name, file in files.items():
                place = folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                link(file, place)
            folder.rename(target)
        return target

    @contextlib.contextmanager
    def _locked(self, wait: bool = True) -> Iterator[None]:
        """Admit one process at a time. What it finds half-fetched is of a dead one."""
        for folder in (self._objects, self._folders):
            folder.mkdir(parents=True, exist_ok=True)
        with (self._root / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise
                self._report(f"waiting for another process that fetches into {self._root}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            self._remove_leftovers()
            self._scratch.mkdir()
            try:
                yield
            finally:
                self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove what nobody can go on with, and what nobody has gone on with for long."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        for part in self._objects.glob("*" + PART):
            if time.time() - part.stat().st_mtime > PART_LIFE_S:
                part.unlink()

    def _fetch_listing(self, source: str, listing: addresses.Listing) -> Path:
        if source.endswith(addresses.ARCHIVE):
            return self._unpacked(
                listing.version, source, lambda: self._download(listing.remotes.values())[0]
            )
        target = self._folders / listing.version
        if not target.is_dir():
            files = self._download(listing.remotes.values())
            self._linked(dict(zip(listing.remotes, files, strict=True)), target, os.link)
        return target / listing.repository

    def _download(self, remotes: Iterable[Remote]) -> list[Path]:
        """Download the objects that the cache lacks; return their files."""
        remotes = list(remotes)
        # Files of one content are one object.
        files = {self._objects / remote.name: remote for remote in remotes}
        parts = [PartialFile(remote, file) for file, remote in files.items() if not file.is_file()]
        self._used.update(files, (part.path for part in parts))
        self._make_room(sum(part.left for part in parts))
        self.fetched_bytes += download(parts, self._report)
        return [self._objects / remote.name for remote in remotes]

    def _fetch_https(self, source: str) -> Path:
        url, _, wanted = source.partition("#sha256=")
        if wanted and not re.fullmatch(r"[0-9a-f]{64}", wanted):
            raise StartError(
                f"{shown(source)} must end with #sha256= and 64 hexadecimal digits, or without it."
            )
        if wanted and self._archive_folder(wanted).is_dir():
            return self._archive_folder(wanted)
        try:
            with addresses.opened(url, addresses.FIRST_BYTE) as answer:
                remote, version = addresses.find_https(url, answer)
                identity = wanted or version
                if identity and self._archive_folder(identity).is_dir():
                    return self._archive_folder(identity)
                if remote is not None:
                    (file,) = self._download([remote])
                elif answer.status == HTTPStatus.OK:
                    file = self._save(answer)
                else:
                    with addresses.opened(url) as whole:
                        file = self._save(whole)
        except addresses.HTTP_ERRORS as error:
            raise StartError(f"{shown(url)} cannot be fetched: {addresses.explain(error)}.") from None
        if wanted and sha256(file) != wanted:
            file.unlink()
            raise StartError(f"{shown(url)} has another SHA-256 than {wanted}.")
        return self._unpacked(identity or sha256(file), source, lambda: file)

    def _save(self, answer: http.client.HTTPResponse) -> Path:
        """Download from a server that sends no ranges of a known version."""
        size = int(answer.headers["Content-Length"] or 0)
        self._make_room(size)
        file, progress = self._scratch / "object", DownloadProgress(self._report, size)
        with file.open("wb") as output:
            # read1 returns what has come, so that the progress of a slow host is seen.
            while chunk := answer.read1(CHUNK_BYTES):
                output.write(chunk)
                progress.add(len(chunk))
        self.fetched_bytes += progress.done
        if size and progress.done != size:
            raise BrokenConnection(f"it ended after {progress.done:,} of {size:,} bytes")
        return file

    def _archive_folder(self, identity: str) -> Path:
        return self._folders / addresses.digest("archive", identity)

    def _unpacked(self, identity: str, source: str, get: Callable[[], Path]) -> Path:
        """Return the content of an archive of regular files and folders; ``get`` returns the archive."""
        source, target = shown(source), self._archive_folder(identity)
        if target.is_dir():
            return target
        archive = get()
        self._report(f"unpacking {source}")
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            with tarfile.open(archive, "r|gz") as tar:
                for count, member in enumerate(tar):
                    if count >= MAX_ENTRIES:
                        raise StartError(f"{source} has more than {MAX_ENTRIES:,} files and folders.")
                    if not (member.isreg() or member.isdir() or member.islnk()):
                        raise StartError(f"{source}: {member.name!r} is not a regular file or folder.")
                    self._make_room(member.size)
                    _extract(tar, member, folder)
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise StartError(f"{source} cannot be unpacked: {error}.") from None
        folder.rename(target)
        if archive.parent == self._objects:
            archive.unlink()
        return target

    def _make_room(self, size: int) -> None:
        """Remove what no box uses, the least recently used first, until ``size`` bytes are free."""
        free = shutil.disk_usage(self._root).free
        if size <= free:
            return
        self._remove_orphans()
        for folder in self._idle_folders():
            if size <= shutil.disk_usage(self._root).free:
                break
            shutil.rmtree(folder.rename(self._scratch / folder.name))
            self._remove_orphans()
        now_free = shutil.disk_usage(self._root).free
        self.removed_bytes += max(now_free - free, 0)
        if size > now_free:
            raise StartError(
                f"{size / 1e6:,.0f} MB are to be fetched into {self._root}, which has "
                f"{now_free / 1e6:,.0f} MB."
            )

    def _remove_orphans(self) -> None:
        """Remove the files that are in no folder, but for those of this fetch."""
        for file in self._objects.iterdir():
            if file not in self._used and file.stat().st_nlink == 1:
                file.unlink()

    def _idle_folders(self) -> Iterator[Path]:
        """Yield the folders that no box uses, the least recently used first."""
        used = {folder: folder.stat().st_mtime for folder in self._folders.iterdir()}
        for folder in sorted(used, key=lambda folder: used[folder]):
            if folder not in self._used and time.time() - used[folder] > MIN_IDLE_S and not _is_held(folder):
                yield folder


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Unpack a file, folder or hard link into ``folder``, as this user's. An entry replaces an earlier file.

    tarfile's own filters are not in Python 3.11.2, which Debian 12 has.

    Raises:
        tarfile.TarError: It leads out of the folder, or is a link to a file that does not come before it.
    """
    place = folder / _path_inside(member.name)
    if member.isdir():
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_file():
        # If it were written into, the files that are hard links to it would change too.
        place.unlink()
    if member.islnk():
        target = folder / _path_inside(member.linkname)
        if not target.is_file():
            raise tarfile.TarError(
                f"{member.name!r} is a link to {member.linkname!r}, which is not before it"
            )
        place.hardlink_to(target)
    elif content := tar.extractfile(member):
        with content, place.open("wb") as file:
            shutil.copyfileobj(content, file, CHUNK_BYTES)
        # A program stays executable; nobody else may write, and nobody gets its owner's rights.
        place.chmod(member.mode & 0o755 | 0o600)
        os.utime(place, (member.mtime, member.mtime))


def _path_inside(name: str) -> str:
    """Return a name in an archive as a relative path. Raises ``TarError`` if it leads out."""
    path = os.path.normpath(name.lstrip("/"))
    if ".." in Path(path).parts:
        raise tarfile.TarError(f"{name!r} leads out of it")
    return path


class CacheHolds:
    """Keeps folders that were fetched into ``root`` from being removed to make room.

    A hold is a shared lock, which the kernel releases when the process dies.
    """

    def __init__(self, root: Path) -> None:
        self._folders = root.resolve() / FOLDERS
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}

    def keep(self, paths: Iterable[Path]) -> None:
        """Hold what these paths need, and nothing else. Paths elsewhere need no hold."""
        wanted = {
            place.relative_to(self._folders).parts[0]
            for path in paths
            # A joined repository has links to others.
            for place in (path.absolute(), path.resolve())
            if place.is_relative_to(self._folders) and place != self._folders
        }
        with self._lock:
            for name in self._files.keys() - wanted:
                os.close(self._files.pop(name))
            for name in wanted - self._files.keys():
                with contextlib.suppress(FileNotFoundError):  # its user finds out
                    file = os.open(self._folders / name, os.O_RDONLY)
                    fcntl.flock(file, fcntl.LOCK_SH)
                    self._files[name] = file


def _is_held(folder: Path) -> bool:
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def main(arguments: Sequence[str]) -> int:
    """Fetch a source for the supervisor, which reads the lines and knows the last by the exit code."""

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    source, root = arguments
    began = time.time_ns()
    cache = ModelCache(Path(root), say)
    try:
        if source == "--list":
            say(json.dumps(addresses.list_folders(root)))
            return 0
        repository = cache.fetch(source)
        attributes = {"trireme.source": shown(source), "trireme.bytes": cache.fetched_bytes}
        for observer in entry_points.observers():
            observer.write_span("fetch", began, attributes)
    except (StartError, BrokenConnection) as error:
        say(shown(str(error)))
        return 1
    except Exception as error:
        # Its text may have the address as it is, or a header.
        say(f"{shown(source)} cannot be fetched: unexpected {type(error).__name__}.")
        return 1
    result = {"bytes": cache.fetched_bytes, "removed_bytes": cache.removed_bytes}
    say(json.dumps({"repository": str(repository), **result}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
