"""Put an archive's models into Triton's repository: links to the files, and a configuration.

Triton requires that folder and configuration have the model's name.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm.errors import BadInput
from sm.models.archive_copy import copy_archive
from sm.models.archive_layout import Archive, callable_names
from sm.models.load_records import is_complete
from sm.repository import models, response_cache
from sm.repository.ensembles import is_ensemble
from sm.repository.links import link_model
from sm.repository.models import CONFIG as CONFIG
from sm.repository.models import Model

#: Seconds to wait for a removal: on a full disk its room is needed by what follows. Many files take longer.
REMOVAL_WAIT_S = 1.0


class Staging:
    """``repository`` is Triton's. ``archives`` has a folder for each record id, with the copy of the archive
    and, for a client, its models under the names that the client uses.
    """

    def __init__(self, repository: Path, archives: Path) -> None:
        self._repository, self._archives = repository, archives
        #: Folders that are being removed lie here: many files take longer than a caller waits.
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

    def touch(self, name: str) -> Model:
        """Renew the version folders' times, and return the model: Triton reloads one only if it is newer.

        Raises:
            BadInput: Files of the model are gone.
        """
        if not is_complete(self._repository / name):
            raise BadInput(f"the files of {name!r} are gone")
        renew(self._repository / name)
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
