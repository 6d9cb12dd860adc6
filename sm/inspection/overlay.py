"""Build an overlay: a folder of links to a repository, so that the team's files are never changed.

In place of some links it has plans that were built here, or configurations for a machine without a GPU. For a
path that Triton cannot use, it is one link to the whole repository.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Collection
from pathlib import Path

from sm.inspection.problems import holds_plan
from sm.repository import config_files, models

PLAN, LOG = "model.plan", "model.plan.log"


def find_missing_plans(repository: Path) -> list[Path]:
    """Return the version folders to serve whose plan is missing or does not fit this box."""
    repository_models = models.read(repository)
    folders = [model.version(number) for model in repository_models for number in model.served]
    return [folder for folder in folders if holds_plan(folder) and not fits(folder)]


def fits(folder: Path) -> bool:
    """True if the folder has a plan that runs here."""
    from sm.hardware import Hardware
    from sm.inspection.problems import manifest_problem

    return (folder / PLAN).is_file() and manifest_problem(folder, Hardware.find()) is None


def same_source(version: Path, built: Path) -> bool:
    """True if the plans of two version folders come from the same graph, precision and profiles."""
    from sm.repository.manifest import Manifest

    first, second = Manifest.read(built), Manifest.read(version)
    if first is None or second is None:
        return False
    return (first.source, first.precision, first.profiles) == (
        second.source,
        second.precision,
        second.profiles,
    )


def merge(repository: Path, merged: Path, missing: list[Path]) -> None:
    """Link everything of the repository to ``merged``, except the version folders whose plan is missing.

    Plans that were built into ``merged`` stay there.
    """
    merged.mkdir(parents=True, exist_ok=True)
    for path in merged.iterdir():
        if path.is_symlink():
            path.unlink()
        elif not (repository / path.name).is_dir():
            shutil.rmtree(path)
    with_missing_plan = {version.parent for version in missing}
    for entry in repository.iterdir():
        if entry in with_missing_plan:
            _merge_model(entry, merged / entry.name, {version.name for version in missing})
        else:
            _link(entry, merged / entry.name)


def for_triton(repository: Path, folder: Path, cpu_models: Collection[str]) -> Path | None:
    """Create at ``folder`` what Triton reads in place of the repository; None if it can read that itself.

    It can not if ``cpu_models`` need another configuration here, or if the shell would split the path: Triton
    2.51 starts a Python model's process through ``bash -c`` and does not quote the path.
    """
    if cpu_models:
        return overlay_cpu(repository, folder, cpu_models)
    if shlex.quote(str(repository)) == str(repository):
        return None
    folder.symlink_to(repository.absolute())
    return folder


def overlay_cpu(repository: Path, merged: Path, names: Collection[str]) -> Path:
    """Link everything of the repository to ``merged``, but configure the models ``names`` for the CPU."""
    merged.mkdir()
    for entry in repository.iterdir():
        if entry.name not in names:
            _link(entry, merged / entry.name)
            continue
        (merged / entry.name).mkdir()
        for file in entry.iterdir():
            if file.name != models.CONFIG:
                _link(file, merged / entry.name / file.name)
        config = config_files.without_gpu(config_files.read(entry / models.CONFIG))
        (merged / entry.name / models.CONFIG).write_text(config_files.write(config))
    return merged


def _merge_model(model: Path, merged: Path, versions: set[str]) -> None:
    merged.mkdir(exist_ok=True)
    for entry in model.iterdir():
        if entry.name not in versions or not entry.is_dir():
            _link(entry, merged / entry.name)
            continue
        (merged / entry.name).mkdir(exist_ok=True)
        for file in entry.iterdir():
            if file.name not in (PLAN, LOG, "manifest.json"):
                _link(file, merged / entry.name / file.name)


def _link(path: Path, link: Path) -> None:
    """Link to ``path``, in the place of what is there."""
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(path)
