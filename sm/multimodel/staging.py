"""Put an archive's models into Triton's repository: links to the files, and a ``config.pbtxt`` for each.

Triton requires that folder and configuration have the model's name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm.errors import BadInput
from sm.multimodel.archive_layout import Archive, callable_names
from sm.multimodel.copying import copy_archive
from sm.multimodel.load_records import Record
from sm.repository import models
from sm.repository.ensembles import is_ensemble
from sm.repository.models import CONFIG as CONFIG
from sm.repository.models import Model


class Staging:
    """``repository`` is Triton's. ``archives`` has a folder for each record id, with the copy of the archive
    and, for a client, its models under the names that the client uses.
    """

    def __init__(self, repository: Path, archives: Path) -> None:
        self._repository, self._archives = repository, archives

    def copy(self, folder: Path, record_id: str, name: str) -> Path:
        """Copy the archive in ``folder`` into a folder called ``name``, which may become a model's name."""
        target = self._archives / record_id / "files" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_archive(folder, target)
        return target

    def add(self, archive: Archive, names: Mapping[str, str]) -> None:
        """Create the models' folders. ``names`` are Triton's, by the archive's."""
        for archive_name, model in archive.models.items():
            # An unfinished load may have left a folder.
            shutil.rmtree(self._repository / names[archive_name], ignore_errors=True)
            _add_model(model, self._repository / names[archive_name], names, archive_name in archive.on_cpu)

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
        for name in names.values():
            shutil.rmtree(self._repository / name, ignore_errors=True)
        shutil.rmtree(self._archives / record_id, ignore_errors=True)


def is_complete(folder: Path) -> bool:
    """True if every link in a model's folder has a target.

    Triton waits for ever for a Python model whose file is gone, and then all other loads wait too.
    """
    return all(path.exists() for path in folder.rglob("*"))


def find_restorable(record: Record, repository: Path) -> list[str]:
    """Return Triton's names of the models whose files all exist; none if the archive itself is gone."""
    if not Path(record.folder).is_dir():
        return []
    return [name for name in record.models.values() if is_complete(repository / name)]


def renew(model: Path) -> None:
    """Renew the times of a model's version folders, so that Triton loads it again."""
    for version in model.iterdir():
        if version.is_dir() and not version.is_symlink():
            os.utime(version)


def _add_model(model: Model, folder: Path, names: Mapping[str, str], on_cpu: bool) -> None:
    folder.mkdir()
    versions = {str(number) for number in model.versions}
    for path in model.folder.iterdir():
        if path.name in versions:
            _link_files(path, folder / path.name)
        elif path.name != CONFIG:
            (folder / path.name).symlink_to(path)
    if model.config is not None:
        config = rename_config(model.config, folder.name, names)
        config = models.without_gpu(config) if on_cpu else config
        if config == model.config:
            (folder / CONFIG).symlink_to(model.folder / CONFIG)
        else:
            (folder / CONFIG).write_text(models.write_config(config))
    if is_ensemble(model) and not model.versions:
        # An empty version folder, which many archive tools leave out.
        (folder / "1").mkdir()


def _link_files(source: Path, folder: Path) -> None:
    """Link a version's files into a new folder, whose time can be set: an archive may be read-only."""
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).symlink_to(path)


def rename_config(config: Any, name: str, names: Mapping[str, str]) -> Any:
    """Return a copy of the configuration with the model's ``name``, and its steps' by ``names``."""
    renamed = type(config)()
    renamed.CopyFrom(config)
    renamed.name = name
    for step in renamed.ensemble_scheduling.step if renamed.HasField("ensemble_scheduling") else ():
        step.model_name = names.get(step.model_name, step.model_name)
    return renamed
