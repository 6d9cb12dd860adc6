"""Where the models of a start come from: found, fetched or built, then checked and linked for Triton."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sm.errors import BadInput, StartError
from sm.models.archive_copy import copy_archive
from sm.models.fetch.addresses import HUB, is_prefix, is_source, shown
from sm.models.fetch.model_cache import CacheHolds, ModelCache
from sm.repository import gpu_driver, models, overlay, problems, response_cache
from sm.repository.machine import Machine
from sm.run_state import Box
from sm.server.logs import Log
from sm.server.startup import check_readable, choose_repository, find_repository
from sm.server.supervisor.preparation import Preparation, build_plans
from sm.settings import ON_DEMAND, Settings
from sm.triton import server

REPOSITORY = "TRIREME_MODEL_REPOSITORY"


@dataclass(frozen=True)
class FoundModels:
    """The models that a box is started with."""

    #: With the repository that was fetched or built.
    settings: Settings
    #: The source of the models as the deployment writes it; empty if it names none.
    source: str
    #: What the box's record has of a source that was fetched: its address, bytes and seconds.
    fetched: Mapping[str, Any]
    #: True if a maker of models made the repository.
    is_built: bool

    def build_plans(self, machine: Machine, preparation: Preparation, log: Log) -> Path | None:
        """Check the models and build their missing plans. Returns the repository; None in multi-model mode.

        Raises:
            StartError: A problem stops the start, or a plan cannot be built.
        """
        settings = self.settings
        if settings.multi_model:
            return None
        repository = find_repository(settings)
        if settings.build_engines == "missing":
            repository = build_plans(repository, settings, preparation, log)
        check_models(repository, machine, settings, log)
        return repository

    def link(self, box: Box, machine: Machine, nginx: Path | None, reload: bool, log: Log) -> Box:
        """Write the folder of links that Triton reads; return the box with it and with the models' origin."""
        settings, box = self.settings, replace(box, **self.fetched)
        if settings.models == ON_DEMAND:
            box = replace(box, catalog=find_catalog(settings, self.source))
        if box.multi_model:
            return box
        if settings.model_poll is not None:
            check_versions(settings, box, nginx, reload)
            is_polled = is_source(self.source) and not self.is_built
            box = keep_first_versions(box, self.source if is_polled else str(box.repository), log)
        has_cache = settings.caches_responses
        for name, why in response_cache.refused(models.read(box.repository), has_cache).items():
            log.log("warning", f"{name} is served without the response cache that it asks for: {why}")
        links = overlay.for_triton(box.repository, box.overlay_folder, machine, has_cache)
        return replace(box, overlay=links)


def find_models(settings: Settings, preparation: Preparation, log: Log) -> FoundModels:
    """Find the models of a start: fetch the source that is named, and build a checkpoint.

    Args:
        settings: Of the box.
        preparation: Runs what takes long, and answers ``/ping`` meanwhile.

    Raises:
        StartError: They cannot be fetched or built.
    """
    # A path would turn the two slashes of a URL into one.
    source = os.environ.get(REPOSITORY, "").strip()
    fetched: dict[str, Any] = {}
    is_whole = not is_prefix(source) if settings.models == ON_DEMAND else not settings.multi_model
    if is_source(source) and is_whole:
        cache = settings.cache / "sources"
        repository, fetched = fetch_models(source, cache, preparation, log)
        # Until this process ends.
        CacheHolds(cache).keep((repository, *repository.iterdir()))
        settings = replace(settings, repository=repository)
    checkpoint = find_checkpoint(settings, source)
    if checkpoint:
        preparation.begin(f"building {checkpoint[1]} for this machine")
        module = ("sm.repository.model_makers", "make", *checkpoint)
        built, said = json.loads(preparation.run(module))
        if said:
            log.log("info", said)
        settings = replace(settings, repository=Path(built))
    gpu_driver.check_gpus(gpu_driver.of_this_machine().cuda)
    return FoundModels(settings, source, fetched, checkpoint is not None)


def fetch_models(source: str, cache: Path, preparation: Preparation, log: Log) -> tuple[Path, dict[str, Any]]:
    """Fetch a repository, and say in the log and in ``/ping`` how far it is.

    Returns:
        The repository, and what the box's record has of it.
    """
    started = time.monotonic()
    preparation.begin(f"fetching {shown(source)}")

    def so_far(line: str) -> str:
        return f"fetching {shown(source)}: {line}" if line and not line.startswith("{") else ""

    try:
        result = json.loads(preparation.run(("sm.models.fetch.model_cache", source, str(cache)), so_far))
    finally:
        ModelCache(cache, lambda _: None).remove_leftovers()
    size, seconds = result["bytes"], time.monotonic() - started
    if removed := result["removed_bytes"]:
        log.log("info", f"removed {removed / 1e6:,.1f} MB from {cache} to make room: no box used it")
    log.log("info", f"fetched {shown(source)}: {size / 1e6:,.1f} MB in {seconds:,.1f} s")
    return Path(result["repository"]), {"source": source, "fetched_bytes": size, "fetch_seconds": seconds}


def find_checkpoint(settings: Settings, source: str) -> tuple[str, str] | None:
    """Return the folder that a maker of models makes a repository of, and what names it."""
    if settings.repository is None:
        is_set = settings.model_id and not settings.multi_model
        return (settings.model_id, "HF_MODEL_ID") if is_set else None
    if source.startswith(HUB) and "," not in source and not any(settings.repository.glob("*/config.pbtxt")):
        return str(settings.repository), source
    return None


def find_catalog(settings: Settings, source: str) -> str:
    """Return where models that are loaded on demand come from. Raises :class:`StartError` without it."""
    if is_prefix(source):
        return source
    folder = choose_repository(settings)
    if not folder.is_dir():
        raise StartError(f"There is no folder {shown(str(folder))} with models: set {REPOSITORY}.")
    check_readable(folder)
    return str(folder)


def check_versions(settings: Settings, box: Box, nginx: Path | None, reload: bool) -> None:
    """Raise :class:`StartError` if models of this box cannot be replaced."""
    problem = (
        "needs nginx, which passes its requests to one process" if nginx is None
        else "does not go with --reload" if reload
        else "" if server.loads_models(settings, box)
        else "needs a Triton that this box alone controls: leave its ports closed"
    )  # fmt: skip
    if problem:
        raise StartError(f"TRIREME_MODEL_POLL {problem}.")


def keep_first_versions(box: Box, source: str, log: Log) -> Box:
    """Return the box with a copy of its repository: what the team changes there must not change what serves.

    Large files are linked.
    """
    versions = {
        name: (f"{shown(source)}/{name}", models.digest(box.repository, name))
        for name in models.names(box.repository)
    }
    first = box.first_folder
    first.mkdir()
    for entry in filter(Path.is_dir, box.repository.iterdir()):
        if not models.is_own(entry.name):
            continue
        try:
            copy_archive(entry.resolve(), first / entry.name)
        except (BadInput, OSError) as error:
            shutil.rmtree(first / entry.name, ignore_errors=True)
            (first / entry.name).symlink_to(entry)
            log.log("warning", f"{entry} must not change while this version of it serves: {error}")
    return replace(box, repository=first, has_versions=True, source=source, first_versions=versions)


def check_models(repository: Path, machine: Machine, settings: Settings, log: Log) -> None:
    """Log the problems that Triton would meet. Raises :class:`StartError` with the last that stops the start.

    If ``/ping`` requires liveness only, a model that cannot load does not stop the others.
    """
    errors = []
    for problem in problems.find(repository, machine):
        if problem.is_certain and (settings.ping == "ready" or problem.hangs):
            errors.append(problem.sentence)
        else:
            log.log("warning", problem.sentence)
    for sentence in errors[:-1]:
        log.log("error", sentence)
    if errors:
        raise StartError(errors[-1])
