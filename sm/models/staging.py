"""Copy an archive, and put its models into Triton's repository: links to the files, and a configuration.

Triton requires that folder and configuration have the model's name.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm.errors import BadInput
from sm.models.archive_layout import MAX_COPIED_FILE_BYTES, Archive, callable_names
from sm.models.load_records import LoadRecord
from sm.repository import models, response_cache
from sm.repository.ensembles import is_ensemble
from sm.repository.links import link_model
from sm.repository.models import CONFIG as CONFIG
from sm.repository.models import Model

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


#: Seconds to wait for a removal: on a full disk its room is needed by what follows. Many files take longer.
REMOVAL_WAIT_S = 1.0


class Staging:
    """``repository`` is Triton's. ``archives`` has a folder for each record id, with the copy of the archive
    and, for a client, its models under the names that the client uses.
    """

    def __init__(self, repository: Path, archives: Path) -> None:
        self._repository, self._archives = repository, archives
        #: What is being removed: many files take longer than a caller waits.
        self._removed = archives.with_name(f"{archives.name}-removed")
        for left in self._removed.glob("*"):  # by an earlier process
            _remove_in_background(left)

    def folder_of(self, record_id: str) -> Path:
        """Return the folder of a record."""
        return self._archives / record_id

    def copy(self, folder: Path, record_id: str, name: str) -> Path:
        """Copy the archive in ``folder`` into a folder called ``name``, which may become a model's name."""
        target = self._archives / record_id / "files" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_archive(folder, target)
        return target

    def add(self, archive: Archive, names: Mapping[str, str]) -> None:
        """Create the models' folders. ``names`` are Triton's, by the archive's."""
        uncached = response_cache.refused([*archive.models.values()])
        for archive_name, model in archive.models.items():
            # An unfinished load may have left a folder.
            shutil.rmtree(self._repository / names[archive_name], ignore_errors=True)
            _add_model(
                model,
                self._repository / names[archive_name],
                names,
                archive_name in archive.on_cpu,
                model.name in uncached,
            )

    def create_view(self, archive: Archive, record_id: str, others: Path | None = None) -> Path:
        """Create the folder in which the archive's client finds its models, and those in ``others``."""
        folder = self._archives / record_id / "models"
        folder.mkdir(parents=True)
        for model in archive.models.values():
            for name in callable_names(model):
                (folder / name).symlink_to(model.folder)
        for path in others.iterdir() if others else ():
            if not (folder / path.name).is_symlink():
                (folder / path.name).symlink_to(path)
        return folder

    def touch(self, name: str) -> None:
        """Renew the version folders' times: Triton reloads a model only if one is newer.

        Raises:
            BadInput: Files of the model are gone.
        """
        if not is_complete(self._repository / name):
            raise BadInput(f"the files of {name!r} are gone")
        renew(self._repository / name)

    def read(self, name: str) -> Model:
        """Read a staged model."""
        return Model.read(self._repository / name)

    def remove(self, names: Mapping[str, str], record_id: str) -> None:
        """Remove everything that :meth:`copy`, :meth:`add` and :meth:`view` created."""
        folders = [self._repository / name for name in names.values()]
        for folder in (*folders, self._archives / record_id):
            moved = self._removed / secrets.token_hex(8)
            try:
                self._removed.mkdir(exist_ok=True)
                folder.rename(moved)
            except FileNotFoundError:
                continue
            except OSError:  # such as a full disk
                moved = folder
                shutil.rmtree(folder, ignore_errors=True)
            _remove_in_background(moved, REMOVAL_WAIT_S)


def _remove_in_background(folder: Path, wait_s: float = 0.0) -> None:
    if folder.is_dir():
        thread = threading.Thread(target=shutil.rmtree, args=(folder, True), name="remove", daemon=True)
        thread.start()
        thread.join(wait_s)


def is_complete(folder: Path) -> bool:
    """True if every link in a model's folder has a target.

    Triton waits for ever for a Python model whose file is gone, and then all other loads wait too.
    """
    return all(path.exists() for path in folder.rglob("*"))


def find_restorable(record: LoadRecord, repository: Path) -> list[str]:
    """Return Triton's names of the models whose files all exist; none if the archive itself is gone."""
    if not Path(record.folder).is_dir():
        return []
    return [name for name in record.models.values() if is_complete(repository / name)]


def renew(model: Path) -> None:
    """Renew the times of a model's version folders, so that Triton loads it again."""
    for version in model.iterdir():
        if version.is_dir() and not version.is_symlink():
            os.utime(version)


def _add_model(model: Model, folder: Path, names: Mapping[str, str], on_cpu: bool, uncached: bool) -> None:
    # The versions' times can be set there: an archive may be read-only.
    link_model(model.folder, folder, named_files=model.named_files)
    if model.config is not None:
        config = rename_config(model.config, folder.name, names)
        config = models.without_gpu(config) if on_cpu else config
        config = response_cache.without(config) if uncached else config
        if config != model.config:
            (folder / CONFIG).unlink()
            (folder / CONFIG).write_text(models.write_config(config))
    if is_ensemble(model) and not model.versions:
        # An empty version folder, which many archive tools leave out.
        (folder / "1").mkdir()


def rename_config(config: Any, name: str, names: Mapping[str, str]) -> Any:
    """Return a copy of the configuration with the model's ``name``, and its steps' by ``names``."""
    renamed = type(config)()
    renamed.CopyFrom(config)
    renamed.name = name
    for step in renamed.ensemble_scheduling.step if renamed.HasField("ensemble_scheduling") else ():
        step.model_name = names.get(step.model_name, step.model_name)
    return renamed


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
    _Copy(archive, max_copied, max_entries).copy_folder(archive, target, 0)


def lost_file(error: OSError, name: str) -> Exception:
    """Return the error for a file of an archive that cannot be read; the error itself if it is the box's."""
    if error.errno not in READ_ERRORS:
        return error
    return BadInput(f"{name} cannot be read: {error.strerror}; load the archive again when it is complete")


class _Copy:
    """Copies one archive, and counts what it has copied."""

    def __init__(self, archive: Path, max_copied: int, max_entries: int) -> None:
        self._archive, self._bytes_left, self._entries_left = archive, max_copied, max_entries
        self._max_entries = max_entries

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
            self._entries_left -= 1
            if self._entries_left < 0:
                raise BadInput(f"the archive has more than {self._max_entries} files and folders")
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
        has_room = size <= self._bytes_left or source.name.endswith(READ_BY_THE_BOX)
        if size <= MAX_COPIED_FILE_BYTES and has_room:
            self._bytes_left -= size
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
        if self._archive != source and self._archive not in source.parents:
            raise BadInput(f"{self._name_of(path)} is a link that leads out of the archive")
        return source

    def _name_of(self, path: Path) -> str:
        """Format an entry for a message: its path in the archive, shortened."""
        if path == self._archive:
            return "the archive"
        name = str(path.relative_to(self._archive)).encode(errors="backslashreplace").decode()
        return repr(f"…{name[-200:]}" if len(name) > 200 else name)
