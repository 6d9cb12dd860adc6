"""Serve a repository through a folder of links, so that the team's own files are never written.

It has room for plans that were built here, or configurations for a machine without a GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from sm.inspection.problems import is_plans
from sm.repository import config_files, models

PLAN, LOG = "model.plan", "model.plan.log"


def find_missing_plans(repository: Path) -> list[Path]:
    """The version folders that are to be served and whose plan is not there, or is not for this box."""
    found = models.read(repository)
    folders = [model.version(number) for model in found for number in model.served]
    return [folder for folder in folders if is_plans(folder) and not fits(folder)]


def fits(folder: Path) -> bool:
    """Whether a plan is there and runs here."""
    from sm.hardware import Hardware
    from sm.inspection.problems import manifest_problem

    return (folder / PLAN).is_file() and manifest_problem(folder, Hardware.find()) is None


def same_source(version: Path, built: Path) -> bool:
    """Whether two version folders' plans are of one graph, in one precision."""
    from sm.repository.manifest import Manifest

    ours, theirs = Manifest.read(built), Manifest.read(version)
    if ours is None or theirs is None:
        return False
    return (ours.source, ours.precision, ours.profiles) == (theirs.source, theirs.precision, theirs.profiles)


def merge(repository: Path, merged: Path, wanting: list[Path]) -> None:
    """Links to all of the repository but the plans that are wanting; those that were built here stay."""
    merged.mkdir(parents=True, exist_ok=True)
    for path in merged.iterdir():
        if path.is_symlink():
            path.unlink()
        elif not (repository / path.name).is_dir():
            shutil.rmtree(path)
    models_of = {version.parent for version in wanting}
    for entry in repository.iterdir():
        if entry in models_of:
            _merge_model(entry, merged / entry.name, {version.name for version in wanting})
        else:
            _link(entry, merged / entry.name)


def overlay_cpu(repository: Path, merged: Path, names: Collection[str]) -> Path:
    """``merged``: links to all of the repository, but with the models ``names`` configured for the CPU."""
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
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(path)
