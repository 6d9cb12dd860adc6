"""Every problem that a start would meet, each a sentence with what to do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sm.inspection import models, wiring
from sm.inspection.models import Model
from sm.toolkit.code import Code

if TYPE_CHECKING:
    from sm.hardware import Hardware


def all_of(repository: Path) -> list[str]:
    """Everything that is wrong in the repository, model by model."""
    if not repository.is_dir():
        return [f"{repository} is no folder."]
    if (repository / "config.pbtxt").exists():
        return [root_config(repository)]
    found = models.read(repository)
    telling = [model for model in found if model.config or model.fault or model.backend]
    if not telling and Code(repository / "code").serves:
        return [*_links(repository)]
    if not found:
        return [f"There is no model in {repository}: each is a folder with a config.pbtxt and a folder 1."]
    sentences = [sentence for model in found for sentence in _of_model(model)]
    return [*sentences, *wiring.problems(found), *_links(repository), *plans(found)]


def of_start(repository: Path) -> list[str]:
    """What stops a start, looked for before Triton is: it takes some milliseconds where there is no plan."""
    found = models.read(repository)
    told = [model for model in found if model.config is not None]
    sentences = [sentence for model in told for sentence in (*_name(model), *_versions(model))]
    return [*sentences, *wiring.problems(found), *plans(told)]


def root_config(repository: Path) -> str:
    """The contract's words."""
    return f"Model directory needs to contain the top level folder: {repository} has a config.pbtxt itself."


def plans(found: Sequence[Model]) -> list[str]:
    """Plans that were built for another GPU or TensorRT, and manifests that cannot be read.

    The driver is asked, and the types of a manifest are loaded, only where a plan is to be served.
    """
    folders = [model.version(number) for model in found for number in model.served]
    built = [folder for folder in folders if is_plans(folder)]
    if not built:
        return []
    from sm.hardware import Hardware

    hardware = Hardware.find()
    return [sentence for folder in built if (sentence := manifest_problem(folder, hardware))]


def manifest_problem(folder: Path, hardware: Hardware) -> str | None:
    """What is wrong with the manifest of a version folder, or with its plan on this hardware."""
    from sm.manifest import Manifest

    try:
        manifest = Manifest.read(folder)
    except ValueError as error:
        return f"{error} Build it again: sm build-model {folder.parent.name}."
    return manifest.misfit(hardware) if manifest else None


def is_plans(folder: Path) -> bool:
    """Whether a manifest is a plan's; one that is no JSON is looked at more closely too."""
    try:
        said = json.loads((folder / "manifest.json").read_bytes())
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    return not isinstance(said, dict) or said.get("target") not in ("cpu", "onnxruntime")


def _of_model(model: Model) -> Iterator[str]:
    if model.fault:
        yield model.fault
        return
    if model.config is None and not model.backend:
        yield f"{model.folder} has no config.pbtxt, and no version folder that says what it is."
        return
    yield from _name(model)
    yield from _versions(model)
    yield from _files(model)
    if model.environment and not model.environment.exists():
        yield (
            f"{model.folder / 'config.pbtxt'} wants the environment {model.environment}, which is not there: "
            "make it with sm pack-env."
        )


def _name(model: Model) -> Iterator[str]:
    said = model.config.name if model.config else ""
    if said and said != model.name:
        yield (
            f"{model.folder / 'config.pbtxt'} names the model {said!r}; its folder is {model.name!r}: "
            "give both one name."
        )


def _versions(model: Model) -> Iterator[str]:
    if not model.versions:
        yield f"{model.folder} has no version folder: put the model's file into {model.version(1)}."
        return
    for number in sorted(set(model.served) - set(model.versions)):
        yield f"{model.folder} has no version folder {number}, which its config.pbtxt wants served."


def _files(model: Model) -> Iterator[str]:
    for number in sorted(set(model.served) & set(model.versions)):
        if model.file and not (model.version(number) / model.file).exists():
            yield f"{model.version(number)} has no {model.file}, which the {model.backend} backend wants."


def _links(repository: Path) -> Iterator[str]:
    """Links that lead nowhere, or to what a copy of the repository would not have."""
    home = repository.resolve()
    for folder, folders, files in os.walk(repository):
        for name in sorted((*folders, *files)):
            path = Path(folder, name)
            if not path.is_symlink():
                continue
            target = Path(os.path.realpath(path))  # resolve() fails on a link to itself
            if not path.exists():
                yield f"{path} is a link to {path.readlink()}, which is not there."
            elif home != target and home not in target.parents:
                yield f"{path} is a link to {target}, outside the repository: put a copy in its place."
