"""Build an overlay: a folder of links to a repository, so that the team's files are never changed.

In place of some links it has plans that were built here, or configurations for a machine without a GPU.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from sm.hardware import Hardware
from sm.repository import models, problems, response_cache
from sm.repository.links import link, link_model
from sm.repository.machine import Machine
from sm.repository.problems import manifest_problem, plan_folders

#: Fields of a manifest that are alike if one build replaces another.
SAME_BUILD = ("source", "precision", "profiles", "version_compatible", "hardware_compatibility")
PLAN, LOG = "model.plan", "model.plan.log"


def find_missing_plans(repository: Path) -> list[Path]:
    """Return the version folders to serve whose plan is missing or does not fit this box."""
    return [folder for folder in plan_folders(models.read(repository)) if not fits(folder)]


def has_version_compatible_plan(repository: Path) -> bool:
    """True if the repository serves a plan that brings a TensorRT runtime of its own."""
    from sm.repository.manifest import Manifest

    manifests = map(Manifest.read, plan_folders(models.read(repository)))
    return any(manifest is not None and manifest.version_compatible for manifest in manifests)


def fits(folder: Path) -> bool:
    """True if the folder has a plan that runs here."""
    return (folder / PLAN).is_file() and manifest_problem(folder, Hardware.find()) is None


def same_source(version: Path, built: Path) -> bool:
    """True if the plans of two version folders come from the same graph, precision and profiles."""
    from sm.repository.manifest import Manifest

    first, second = Manifest.read(built), Manifest.read(version)
    if first is None or second is None:
        return False
    return all(getattr(first, field) == getattr(second, field) for field in SAME_BUILD)


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
            names = {version.name for version in missing}
            left_out = (PLAN, LOG, "manifest.json")
            link_model(entry, merged / entry.name, is_opened=names.__contains__, left_out=left_out)
        else:
            link(entry, merged / entry.name)


def for_triton(
    repository: Path,
    folder: Path,
    machine: Machine,
    has_cache: bool = False,
) -> Path:
    """Create at ``folder`` what Triton reads in place of the repository: folders with links to its files.

    The box can touch the folders, so that Triton loads a model again. And the path has
    no space, with which Triton 2.51 starts no Python model.

    Args:
        machine: Without a GPU, models whose configuration asks for one run on the CPU. Those that must not
            answer from Triton's response cache do not ask for it.
        has_cache: Triton has a response cache.
    """
    folder.mkdir()
    for entry in repository.iterdir():
        if not entry.is_dir():
            link(entry, folder / entry.name)
        # Triton would take any other folder for a model that cannot be loaded, and never be ready.
        elif models.may_be_model(entry.name):
            link_model(entry, folder / entry.name, named_files=models.Model.read(entry).named_files)
    inspected = models.read(repository)
    changed = {model.name: models.without_gpu(model.config) for model in problems.on_cpu(inspected, machine)}
    configs = {model.name: model.config for model in inspected}
    for name in response_cache.refused(inspected, has_cache):
        changed[name] = response_cache.without(changed.get(name, configs[name]))
    for name, config in changed.items():
        file = folder / name / models.CONFIG
        file.unlink()
        file.write_text(models.write_config(config))
    return folder
